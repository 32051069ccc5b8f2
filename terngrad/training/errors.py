"""The errors that end a training: it diverged, or a file cannot be written."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

import numpy as np
import tensorflow as tf

from terngrad.cluster.errors import SharedError
from terngrad.layout import Layout
from terngrad.training.classifier import Losses

# TensorFlow's own names: of the function, the node and a temporary file before the reason, and of
# the operation behind it.
_AROUND = re.compile(r"^(\{\{[^}]*\}\} *)*(/[^;]*; )?| *\[Op:\w+\].*$| *\[\[\{\{.*$")


class NotFiniteError(ValueError):
    """A loss, a gradient or a weight is NaN or infinite; the text names it."""


class DivergedError(SharedError):
    """The training diverged; the text names the value and the last good checkpoint.

    Losses and scales are those of all nodes, so workers in step find it in the same step.
    """


def not_finite(
    losses: Losses,
    scales: tf.Tensor,
    layout: Layout,
    among: Container[int] | None = None,
    floats: Sequence[str] = (),
) -> list[str]:
    """Returns a text for each loss or gradient of a step that is NaN or infinite.

    Args:
      losses: losses of the step.
      scales: float32 [p], of the coded variables; infinite where a gradient is not finite.
      layout: layout of the variables, for their names.
      among: indices of the variables that were exchanged; None = all.
      floats: names of the variables without scales whose gradient is NaN or infinite.
    """
    values = zip(("entropy_loss", "reg_loss"), map(float, losses), strict=True)
    bad = [f"{name} is {value}" for name, value in values if not np.isfinite(value)]
    names = [*broken_codes(scales, layout, among), *floats]
    return bad + [f"the gradient of {name} is not finite" for name in names]


def broken_codes(
    scales: tf.Tensor | np.ndarray, layout: Layout, among: Container[int] | None = None
) -> list[str]:
    """Returns the names of the coded variables whose gradient is NaN or infinite.

    Args:
      scales: of the gradients, for each entry of `layout.scaled` that is among these variables.
      layout: of the gradients.
      among: the variables that have scales; None = all.
    """
    broken = np.flatnonzero(~np.isfinite(np.asarray(scales)))
    if not broken.size:  # each step comes here: a list of a million scales takes time
        return []
    scaled = [i for i in layout.scaled if among is None or i in among]
    variables = dict.fromkeys(scaled[i] for i in broken)  # each once
    return [layout.names[i] for i in variables]


def first_line(error: tf.errors.OpError) -> str:
    """Returns the first line of an error's message, without names of TensorFlow's own."""
    return _AROUND.sub("", error.message.splitlines()[0]) if error.message else str(error.code)
