"""Reads a finished run: its curves, accuracies and bytes."""

import dataclasses
import glob
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

from inception.results.metrics import Metrics
from terngrad.training import checkpoints

Evaluate = Callable[[Sequence[str]], list[Metrics]]


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
      payload_bytes: bytes that one node sends in a step; the median where they differ.
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
    payload = float(np.median(scalars["bytes_sent_per_step"].values))
    bits = float(np.median(scalars["bits_per_parameter"].values))
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
