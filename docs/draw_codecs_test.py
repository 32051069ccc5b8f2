"""The picture of codecs is drawn, and its seeds and bits are those of the documents' tables."""

import matplotlib.image
import pytest

from docs import draw_codecs, markdown

_RESULTS = markdown.REPO / "benchmarks" / "results"
_TABLES = "".join(
    (_RESULTS / name).read_text(encoding="utf-8").replace(" %", "").replace("**", "")
    for name in ("2026-11-27-codecs.md", "2026-11-27-local-steps.md")
)
_POINTS = [
    pytest.param(point, id=f"{training}: {point.gradients}")
    for training, points in draw_codecs.trainings().items()
    for point in points
]


def test_the_picture_is_drawn_and_that_of_the_page_is_small(tmp_path):
    path = tmp_path / "codecs.png"
    draw_codecs.draw(str(path))
    committed = draw_codecs.PICTURE
    assert matplotlib.image.imread(path).shape == matplotlib.image.imread(committed).shape
    assert committed.stat().st_size < 300_000


@pytest.mark.parametrize("point", _POINTS)
def test_a_point_has_the_seeds_and_bits_of_a_row(point):
    seeds = ", ".join(f"{precision:.2f}" for precision in point.precisions)
    rows = [line for line in _TABLES.splitlines() if f"| {seeds} |" in line]
    assert rows
    if "local steps" not in point.gradients:  # whose table gives bytes
        assert any(f"| {point.bits:.2f} |" in row for row in rows)


def test_a_point_tells_mean_and_deviation_of_its_seeds(tmp_path):
    table = tmp_path / "table.csv"
    lines = (
        "training,gradients,bits,seeds",
        'long,"a, b",1.5,70 72',
        "long,c,32,75",
        "short,c,2,1",
    )
    table.write_text("\n".join(lines), encoding="utf-8")
    panels = draw_codecs.trainings(table)
    assert list(panels) == ["long", "short"]
    both, one = panels["long"]
    assert (both.gradients, both.bits, both.mean) == ("a, b", 1.5, 71)
    assert both.deviation == pytest.approx(2**0.5)
    assert one.deviation is None
