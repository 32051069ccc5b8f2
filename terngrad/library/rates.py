"""Learning rates as text, as worker 0 of an asynchronous training sends them to the servers."""

from __future__ import annotations

import json
import math
import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.training import schedules
from terngrad.training.schedules import Schedule

_SCHEDULES = {
    name: getattr(keras.optimizers.schedules, name)
    for name in (
        "CosineDecay",
        "CosineDecayRestarts",
        "ExponentialDecay",
        "InverseTimeDecay",
        "PiecewiseConstantDecay",
        "PolynomialDecay",
    )
}
_ALLOWED = f"numbers from 0 on, and of keras.optimizers.schedules {', '.join(_SCHEDULES)}"


def write_rate(rate: Any) -> str:
    """Returns a learning rate as text, for `read_rate`.

    Args:
      rate: a number, one of Keras' schedules by step, whose arguments may be NumPy's, or a text,
        which stays as it is.

    Raises:
      TypeError: it is something else.
      ValueError: the number is negative or not finite.
    """
    if isinstance(rate, str):
        return rate
    if isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        if not (rate >= 0 and math.isfinite(rate)):
            raise ValueError(f"learning_rate is {rate}; allowed are {_ALLOWED}")
        return json.dumps({"rate": float(rate)})
    name = type(rate).__name__
    if type(rate) is not _SCHEDULES.get(name):
        raise TypeError(f"learning_rate is {rate!r}; allowed are {_ALLOWED}")
    return json.dumps({"schedule": name, "config": rate.get_config()}, default=_plain)


def _plain(value: Any) -> Any:
    """Returns numbers of NumPy or TensorFlow as Python's."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"learning_rate: a schedule with {value!r}; allowed are numbers in it")
    return array.tolist()


def read_rate(text: str) -> Schedule:
    """Returns the learning rate in a text of `write_rate`.

    Raises:
      ValueError, TypeError, LookupError: the text is another one.
    """
    said = json.loads(text)
    if "rate" in said:
        return schedules.fixed(float(said["rate"]))
    decay = _SCHEDULES[said["schedule"]](**said["config"])
    schedule = lambda step: tf.cast(decay(step), tf.float32)
    try:
        schedule(tf.constant(0, tf.int64))
    except tf.errors.OpError as error:
        raise ValueError(error.message) from None
    return schedule
