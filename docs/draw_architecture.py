"""Draws the layers of docs/layers.py as the picture that opens docs/design.md.

python -m docs.draw_architecture    # writes docs/architecture.svg
"""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from docs.layers import ROWS, root_of

PATH = Path(__file__).with_name("architecture.svg")

_TITLES = {
    "inception": "the programs that join the two",
    "slim": "from records to logits",
    "terngrad": "from local gradients to shared updates",
}
_LINE, _PADDING, _GAP, _TITLE = 18, 4, 9, 26  # heights in pixels; a gap holds an arrow
_MARGIN, _BETWEEN = 10, 26  # around the picture and its packages
_LEFT, _RIGHT = 490, 500  # widths of packages
_NAME, _LETTER = 118, 8.4  # widths of most names, and of a letter of a longer one
_LEGEND = (
    "An arrow means: may import. Modules import from their own row",
    "and from the rows below, those of inception from both libraries.",
)
_STYLE = """
  text { font: 13px Helvetica, Arial, sans-serif; fill: #222; }
  .title { font-size: 15px; }
  .name { font-weight: bold; }
  .package { fill: #f4f6f8; stroke: #8a97a5; }
  .row { fill: #ffffff; stroke: #8a97a5; }
  .arrow { stroke: #46596c; stroke-width: 1.5; fill: none; marker-end: url(#head); }
"""
_HEAD = (
    '<marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" '
    'orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="#46596c"/></marker>'
)


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle, in pixels from the upper left corner."""

    left: int
    top: int
    width: int
    height: int

    @property
    def bottom(self) -> int:
        """Its lower edge."""
        return self.top + self.height

    @property
    def middle(self) -> int:
        """Half way from its left edge to its right one."""
        return self.left + self.width // 2

    def drawn(self, kind: str) -> str:
        """The element of a class."""
        return (
            f'<rect class="{kind}" x="{self.left}" y="{self.top}" width="{self.width}" '
            f'height="{self.height}" rx="3"/>'
        )


def svg() -> str:
    """Returns the picture: tools above programs, and these above both libraries."""
    width = 2 * _MARGIN + _LEFT + _BETWEEN + _RIGHT
    tools = _rows_box(_rows("benchmarks")[0], _MARGIN, _MARGIN, width - 2 * _MARGIN)
    top = tools.bottom + _BETWEEN
    inception = _package_box("inception", _MARGIN, top, _LEFT)
    slim = _package_box("slim", _MARGIN, inception.bottom + _BETWEEN, _LEFT)
    terngrad = _package_box("terngrad", _MARGIN + _LEFT + _BETWEEN, top, _RIGHT)
    side = inception.top + inception.height // 2
    elements = [
        *_row(tools, _rows("benchmarks")[0], ""),
        *(_down(box.middle, tools.bottom, top) for box in (inception, terngrad)),
        *(
            line
            for box, root in ((inception, "inception"), (slim, "slim"), (terngrad, "terngrad"))
            for line in _package(root, box)
        ),
        _down(inception.middle, inception.bottom, slim.top),
        _arrow(f"M{inception.left + inception.width},{side} H{terngrad.left}"),
    ]
    for line, text in enumerate(_LEGEND):
        elements.append(_text(_MARGIN, slim.bottom + 30 + _LINE * line, "legend", "", text))
    height = max(slim.bottom, terngrad.bottom) + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">',
            "<title>Who imports whom: each layer only what lies below it</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{_HEAD}</defs>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *elements,
            "</svg>\n",
        ]
    )


def _rows(root: str) -> list[Mapping[str, str]]:
    """The rows of a package, the highest first."""
    return [row for row in reversed(ROWS) if root in {root_of(name) for name in row}]


def _rows_box(row: Mapping[str, str], left: int, top: int, width: int) -> Box:
    return Box(left, top, width, 2 * _PADDING + _LINE * len(row))


def _package_box(root: str, left: int, top: int, width: int) -> Box:
    heights = [_rows_box(row, 0, 0, 0).height + _GAP for row in _rows(root)]
    return Box(left, top, width, _TITLE + sum(heights))


def _package(root: str, box: Box) -> Iterator[str]:
    """Yields a package with its rows and the arrows between them."""
    yield box.drawn("package")
    yield _text(box.left + _MARGIN, box.top + 18, "title", root, f": {_TITLES[root]}")
    top, above = box.top + _TITLE, None
    for row in _rows(root):
        own = _rows_box(row, box.left + _MARGIN, top, box.width - 2 * _MARGIN)
        yield from _row(own, row, f"{root}.")
        if above is not None:
            yield _down(own.middle, above.bottom, own.top)
        top, above = own.bottom + _GAP, own


def _row(box: Box, row: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yields a box with a line for each name; a package's names go without its own."""
    yield box.drawn("row")
    names = {name.removeprefix(prefix): what for name, what in row.items()}
    indent = max(_NAME, round(_LETTER * max(map(len, names))))
    for line, (name, what) in enumerate(names.items()):
        baseline = box.top + _PADDING + _LINE * line + 13
        yield _text(box.left + 8, baseline, "name", name, "")
        yield _text(box.left + 8 + indent, baseline, "what", "", what)


def _text(left: int, baseline: int, kind: str, bold: str, plain: str) -> str:
    start = f'<tspan class="name">{escape(bold)}</tspan>' if bold else ""
    return f'<text class="{kind}" x="{left}" y="{baseline}">{start}{escape(plain)}</text>'


def _down(x: int, top: int, bottom: int) -> str:
    return _arrow(f"M{x},{top} V{bottom}")


def _arrow(path: str) -> str:
    return f'<path class="arrow" d="{path}"/>'


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # there is nothing to choose
    PATH.write_text(svg(), encoding="utf-8")
