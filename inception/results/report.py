"""Reads finished runs, and compares them in a table and in a picture."""

import dataclasses
import glob
import os
from collections.abc import Callable, Mapping, Sequence

import matplotlib.figure
import numpy as np
import rich.console
import rich.table
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

from inception.results.metrics import Metrics
from slim.datasets import files
from terngrad.training import checkpoints

Evaluate = Callable[[Sequence[str]], list[Metrics]]
_SMOOTHED = 0.07  # fraction of the run that one point of the smoothed loss averages


@dataclasses.dataclass(frozen=True)
class Curve:
    """A figure over the steps of a run."""

    steps: list[int]
    values: list[float]


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      loss: total loss of each logged step.
      accuracy: precision @ 1 on the test images, by checkpoint.
      metrics: metrics of the last checkpoint.
      parameters: number of trained parameters.
      payload_bytes: bytes that one node sends in a step, on average over all steps.
      bits_per_parameter: the same, in bits per parameter.
      ms_per_step: median duration of a step, in milliseconds.
    """

    loss: Curve
    accuracy: Curve
    metrics: Metrics
    parameters: int
    payload_bytes: float
    bits_per_parameter: float
    ms_per_step: float


def read_run(train_dir: str, *, batch_size: int, evaluate: Evaluate) -> Run:
    """Reads a run's event files and evaluates its checkpoints.

    Args:
      train_dir: folder of the run.
      batch_size: images in a step.
      evaluate: returns the metrics of checkpoints, see `evaluate.measure_checkpoints`.

    Raises:
      ValueError: the folder holds no checkpoint or no events.
    """
    scalars = read_scalars(train_dir)
    paths = checkpoints.all_checkpoints(train_dir)
    if not paths or "losses/total_loss" not in scalars:
        raise ValueError(f"{train_dir}: holds no finished run")
    found = evaluate(paths)
    payload = mean_of_steps(scalars["bytes_sent_per_step"])
    bits = mean_of_steps(scalars["bits_per_parameter"])
    return Run(
        loss=scalars["losses/total_loss"],
        accuracy=Curve(
            [checkpoints.step_of(path) for path in paths], [m.precision_at_1 for m in found]
        ),
        metrics=found[-1],
        parameters=round(8 * payload / bits),
        payload_bytes=payload,
        bits_per_parameter=bits,
        ms_per_step=1000 * batch_size / float(np.median(scalars["examples_per_sec"].values)),
    )


def mean_of_steps(curve: Curve) -> float:
    """Returns the mean over all steps of what was logged as means since the value before."""
    return float(np.average(curve.values, weights=np.diff(curve.steps, prepend=0)))


def read_scalars(directory: str) -> dict[str, Curve]:
    """Returns all scalars in a folder's event files by tag. The last value of a step wins."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "events.out.tfevents.*"))):
        for event in event_file_loader.EventFileLoader(path).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    tensor = tf.make_ndarray(value.tensor)
                    found.setdefault(value.tag, {})[event.step] = float(tensor.reshape(-1)[0])
    return {
        tag: Curve(sorted(values), [values[step] for step in sorted(values)])
        for tag, values in found.items()
    }


def save(figure: matplotlib.figure.Figure, path: str) -> None:
    """Writes a PNG file. It replaces an existing file only when it is complete."""
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)


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
    rich.console.Console(width=100, markup=False, emoji=False).print(table)


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
