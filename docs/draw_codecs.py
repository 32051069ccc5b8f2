"""Draws what codecs cost in accuracy: precision over bits, of each training in a table of figures.

python -m docs.draw_codecs    # writes benchmarks/results/2026-11-27-codecs.png
"""

import argparse
import csv
import itertools
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import matplotlib.figure

from inception.results import report

TABLE = Path(__file__).parents[1] / "benchmarks" / "results" / "2026-11-27-codecs.csv"
PICTURE = TABLE.with_suffix(".png")
_SIZE = (13.0, 5.2)  # inches
# Shapes tell kinds of gradients apart that share a colour.
_SHAPES = {"DDP": "^", "local steps": "s", "4 nodes": "D"}
_MARGIN = 0.2  # points of precision
_COLOURS = 10  # of matplotlib's own cycle


class Point(NamedTuple):
    """A kind of gradients in a training.

    Attributes:
      gradients: their title.
      bits: sent per parameter and step.
      precisions: precision @ 1 of each seed, in percent.
    """

    gradients: str
    bits: float
    precisions: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean of the seeds, in percent."""
        return statistics.fmean(self.precisions)

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the seeds; None for one seed."""
        return statistics.stdev(self.precisions) if len(self.precisions) > 1 else None


def trainings(path: Path = TABLE) -> dict[str, list[Point]]:
    """Returns the points of each training, by its title, in the order of the table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {
        title: [_point(*cells) for _, *cells in group]
        for title, group in itertools.groupby(rows, key=lambda row: row[0])
    }


def draw(path: str, table: Path = TABLE) -> None:
    """Draws a panel for each training; what has the same title looks alike in all of them."""
    panels = trainings(table)
    figure = matplotlib.figure.Figure(_SIZE, layout="constrained")
    grid = figure.subplots(1, len(panels), sharex=True)
    span = max(highest - lowest for lowest, highest in map(_range, panels.values()))
    looks = _looks(point.gradients for points in panels.values() for point in points)
    shown = {}
    for axes, (title, points) in zip(grid, panels.items(), strict=True):
        for each in points:
            colour, shape = looks[each.gradients]
            shown[each.gradients] = axes.errorbar(
                each.bits, each.mean, each.deviation, color=colour, fmt=shape, capsize=3
            )
        _, highest = _range(points)  # equal spans, so that distances of panels compare
        axes.set_ylim(highest - span - _MARGIN, highest + _MARGIN)
        axes.set(title=title, xlabel="bits sent per parameter and step", xscale="log")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("test precision @ 1 (%)")
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4, fontsize=8)
    report.save(figure, path)


def _range(points: list[Point]) -> tuple[float, float]:
    """Returns the lowest and the highest end of error bars, in percent."""
    bars = [(each.mean, each.deviation or 0.0) for each in points]
    return min(mean - bar for mean, bar in bars), max(mean + bar for mean, bar in bars)


def _point(gradients: str, bits: str, precisions: str) -> Point:
    return Point(gradients, float(bits), tuple(map(float, precisions.split())))


def _looks(titles: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns a colour and a shape for each title."""
    shape = lambda title: next((_SHAPES[part] for part in _SHAPES if part in title), "o")
    return {
        title: (f"C{number % _COLOURS}", shape(title))
        for number, title in enumerate(dict.fromkeys(titles))
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # there is nothing to choose
    draw(str(PICTURE))
