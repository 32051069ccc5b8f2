"""Arrays and their bytes, fingerprints and variables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from terngrad.exchange.connection import bytes_of


def fingerprint(values: Iterable[np.ndarray]) -> str:
    """Returns a digest of arrays, bit for bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(bytes_of(value))
    return digest.hexdigest()[:16]


def check_numbers(name: str, dtype: Any) -> None:
    """Raises TypeError, which names an array of something else than numbers and bools."""
    if np.dtype(dtype).kind in "OSU":
        raise TypeError(f"{name} holds {np.dtype(dtype).name}; allowed are numbers and bools")


def kinds(variables: Sequence[tf.Variable]) -> str:
    """Returns the types and shapes of variables as a text."""
    return ", ".join(f"{v.dtype.name}{list(v.shape)}" for v in variables)


def octets(content: bytes, size: int) -> np.ndarray:
    """Returns bytes, with zeros to a size, as an array."""
    return np.frombuffer(content[:size].ljust(size, b"\0"), np.uint8)


def plain(variable: Any) -> tf.Variable:
    """Returns TensorFlow's variable of a Keras variable, or the variable itself.

    Raises:
      TypeError: it is neither.
    """
    if isinstance(variable, tf.Variable):
        return variable
    if not isinstance(held := getattr(variable, "value", None), tf.Variable):
        kind = type(variable).__name__
        raise TypeError(f"a list of tf.Variables or Keras variables has an item of type {kind}")
    return held


def state_of(variables: Sequence[Any]) -> list[tf.Variable]:
    """Returns TensorFlow's variables of a state of `Group.run_steps`.

    Raises:
      TypeError: there is something else.
      ValueError: it does not begin with the step.
    """
    state = [plain(variable) for variable in variables]
    if not state or state[0].dtype != tf.int64 or state[0].shape.rank != 0:
        first = f"{state[0].dtype.name}{list(state[0].shape)}" if state else "nothing"
        raise ValueError(f"run_steps: state begins with {first}; allowed is reducer.state.step")
    return state
