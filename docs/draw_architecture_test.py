"""The architecture picture shows the layers that layers_test.py enforces."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
from PIL import ImageFont

from docs import draw_architecture
from docs.layers import ROWS, root_of

_SVG = "{http://www.w3.org/2000/svg}"


def _texts() -> list[ET.Element]:
    return list(ET.fromstring(draw_architecture.svg()).iter(f"{_SVG}text"))


def _height_of(name: str) -> float:
    """Where a name of a package stands in the picture, from its top."""
    root = root_of(name)
    titles = {
        "".join(t.itertext()).partition(":")[0]: t for t in _texts() if t.get("class") == "title"
    }
    left, top = (float(titles[root].get(side)) for side in ("x", "y"))
    return next(
        float(text.get("y"))
        for text in _texts()
        if "".join(text.itertext()) == name.removeprefix(f"{root}.")
        and 0 <= float(text.get("x")) - left < 10
        and float(text.get("y")) > top
    )


def test_the_committed_picture_is_what_the_program_draws():
    assert draw_architecture.PATH.read_text(encoding="utf-8") == draw_architecture.svg(), (
        "python -m docs.draw_architecture"
    )


def test_the_picture_says_of_every_package_what_it_does():
    shown = ["".join(text.itertext()) for text in _texts()]
    for row in ROWS:
        for name, what in row.items():
            assert {name.removeprefix(f"{root_of(name)}."), what} <= set(shown)


def test_a_layer_stands_above_those_that_it_imports_from():
    for root in ("slim", "terngrad", "inception"):
        rows = [row for row in ROWS if root in {root_of(name) for name in row}]
        heights = [[_height_of(name) for name in row] for row in rows]
        for lower, higher in itertools.pairwise(heights):
            assert max(higher) < min(lower)


def test_every_line_fits_into_its_box_also_in_a_wide_font():
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    measure = ImageFont.truetype(str(font), 13).getlength
    picture = ET.fromstring(draw_architecture.svg())
    boxes = [
        [float(box.get(side)) for side in ("x", "y", "width", "height")]
        for box in picture.iter(f"{_SVG}rect")
        if box.get("class") == "row"
    ]
    lines = [text for text in picture.iter(f"{_SVG}text") if text.get("class") == "what"]
    assert len(lines) == sum(map(len, ROWS))
    for line in lines:
        x, y, text = float(line.get("x")), float(line.get("y")), "".join(line.itertext())
        (own,) = [b for b in boxes if b[0] < x < b[0] + b[2] and b[1] < y < b[1] + b[3]]
        assert x + measure(text) < own[0] + own[2], text
