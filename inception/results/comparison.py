"""Compares runs in a table and in a picture."""

from collections.abc import Mapping

import matplotlib.figure
import numpy as np
import rich.console
import rich.table

from inception.results.report import Curve, Run
from slim.datasets import files


def save(figure: matplotlib.figure.Figure, path: str) -> None:
    """Writes a PNG file. It replaces an existing file only when it is complete."""
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)


_SMOOTHED = 0.07  # fraction of the run that one point of the smoothed loss averages


def print_table(runs: Mapping[str, Run], title: str) -> None:
    """Prints one row per run. A ratio compares the first run's bytes with the row's."""
    table = rich.table.Table(title=title)
    table.add_column("gradients")
    for heading in (
        "precision @ 1",
        "bytes per node and step",
        "bits per parameter",
        "ratio",
        "ms/step",
    ):
        table.add_column(heading, justify="right")
    first = next(iter(runs.values()))
    for name, run in runs.items():
        table.add_row(
            name,
            f"{100 * run.metrics.precision_at_1:.2f} %",
            f"{run.payload_bytes:,.0f}",
            f"{run.bits_per_parameter:.3f}",
            f"{first.payload_bytes / run.payload_bytes:.2f} x",
            f"{run.ms_per_step:.1f}",
        )
    rich.console.Console(width=100).print(table)


def draw(runs: Mapping[str, Run], path: str, title: str) -> None:
    """Draws loss and accuracy over the steps, and the bytes as bars, into a PNG file."""
    figure = matplotlib.figure.Figure(figsize=(13, 4), layout="constrained")
    figure.suptitle(title)
    losses, accuracies, payloads = figure.subplots(1, 3, width_ratios=(2, 2, 1))
    for i, (name, run) in enumerate(runs.items()):
        colour = f"C{i}"
        losses.plot(run.loss.steps, run.loss.values, colour, alpha=0.2)
        losses.plot(run.loss.steps, _smooth(run.loss), colour, label=name)
        percent = 100 * np.array(run.accuracy.values)
        accuracies.plot(run.accuracy.steps, percent, colour, marker=".", label=name)
        kilobytes = run.payload_bytes / 1000
        bar = payloads.bar(name, kilobytes, color=colour)
        payloads.bar_label(bar, [f"{kilobytes:,.0f}"])
    losses.set(title="Total loss (thick: smoothed)", xlabel="step", yscale="log")
    accuracies.set(title="Test precision @ 1 (%)", xlabel="step")
    payloads.margins(y=0.1)
    payloads.set_xticks(range(len(runs)), runs, rotation=30, ha="right")
    payloads.set(title="kB sent per node and step")
    for axes in (losses, accuracies):
        axes.legend()
        axes.grid(alpha=0.3)
    save(figure, path)


def _smooth(curve: Curve) -> np.ndarray:
    """Returns the mean of the values around each step, of fewer values towards the ends."""
    window = np.ones(max(1, round(_SMOOTHED * len(curve.values))))
    total = np.convolve(curve.values, window, "same")
    return total / np.convolve(np.ones(len(curve.values)), window, "same")
