"""Arrays as bytes that every engine can send, their fingerprints, and their variables."""

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


def octets(content: bytes, size: int) -> np.ndarray:
    """Returns bytes, with zeros to a size, as an array."""
    return np.frombuffer(content[:size].ljust(size, b"\0"), np.uint8)


def packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the bytes of arrays as int32, which every engine moves."""
    words = np.zeros(-(-sum(array.nbytes for array in arrays) // 4), np.int32)
    content, start = words.view(np.uint8), 0
    for array in arrays:
        content[start : start + array.nbytes] = bytes_of(array)
        start += array.nbytes
    return words


def unpacked(words: np.ndarray, kinds: Sequence[tuple[Sequence[int], Any]]) -> list[np.ndarray]:
    """Returns the arrays, of some shapes and types, whose bytes `packed` has returned."""
    content, start, arrays = words.data, 0, []
    for shape, dtype in kinds:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, dtype, count, start).reshape(shape))
        start += count * np.dtype(dtype).itemsize
    return arrays


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
