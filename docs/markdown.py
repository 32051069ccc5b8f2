"""Reads blocks, commands and links from the pages, for the tests of the documentation."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).parents[1]

_MARKER = re.compile(r"<!-- (.*) -->")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = "```"


def pages() -> list[Path]:
    """Returns the pages that users and maintainers read."""
    return [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
      place: "PAGE:LINE" of its fence.
      language: the word after the fence, "" for none.
      marker: text of the comment in the line above, "" for none.
      text: the lines within.
    """

    place: str
    language: str
    marker: str
    text: str

    def commands(self) -> list[list[str]]:
        """Returns the words of each shell command; a command is a line."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced blocks of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith(_FENCE):
            continue
        if start is None:
            start = number
            continue
        marker = _MARKER.fullmatch(lines[start - 1]) if start else None
        yield Block(
            place=f"{page.relative_to(REPO)}:{start + 1}",
            language=lines[start].removeprefix(_FENCE),
            marker=marker[1] if marker else "",
            text="\n".join(lines[start + 1 : number]) + "\n",
        )
        start = None


def links(page: Path) -> list[str]:
    """Returns the targets of a page's links and pictures, without those to other sites."""
    found = _LINK.findall(page.read_text(encoding="utf-8"))
    return [target for target in found if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Returns the names by which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
