"""A new order of all data in each epoch, which is a function of a seed and the epoch."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_READ_AT_ONCE = 1024  # elements of a data set that is read into memory


class EpochOrder:
    """The order of rows in each pass over the data.

    Attributes:
      epoch: the epoch of the next pass. Each pass increments it.
    """

    def __init__(self, count: int, seed: int) -> None:
        """Orders `count` rows.

        Raises:
          TypeError: the seed is no integer.
          ValueError: the seed is negative.
        """
        if not isinstance(seed, numbers.Integral) or isinstance(seed, bool):
            raise TypeError(f"shard: reshuffle is {seed!r}; allowed are integers from 0, a seed")
        if seed < 0:
            raise ValueError(f"shard: reshuffle is {seed}; allowed are integers from 0, a seed")
        self.epoch = 0
        self._count = count
        self._seed = int(seed)

    def next(self) -> np.ndarray:
        """Returns the order of the next pass: the indices of all rows, int64 [count]."""
        self.epoch += 1
        return order(self._count, self._seed, self.epoch - 1)


def order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns a permutation of `count` indices, int64; it is the same with all versions of NumPy.

    Of NumPy's random numbers only those of its bit generators never change.
    """
    draws = np.random.PCG64([seed, epoch]).random_raw(count)
    return np.argsort(draws, kind="stable").astype(np.int64)


def reordered(arrays: Any, order: EpochOrder, each: int, rank: int, size: int) -> tf.data.Dataset:
    """Returns a data set of this process' rows in a new order of all rows in each pass.

    Args:
      arrays: tensors [n, ...] in tuples and dicts.
      order: of the n rows.
      each: how many rows each process gets.
      rank: index of this process.
      size: number of processes.
    """

    def shares() -> Iterator[np.ndarray]:
        yield order.next()[rank : each * size : size]

    spec = tf.TensorSpec([None], tf.int64)
    indices = tf.data.Dataset.from_generator(shares, output_signature=spec).unbatch()
    rows = indices.map(lambda i: tf.nest.map_structure(lambda array: array[i], arrays))
    return rows.apply(tf.data.experimental.assert_cardinality(each))


def as_tensors(data: Any) -> Any:
    """Returns arrays, data frames and lists of scalars as tensors, in tuples and dicts.

    Raises:
      ValueError: None stands in the place of an array.
    """
    if data is None:
        raise ValueError("shard: reshuffle makes a data set, which cannot hold None: leave it out")
    if isinstance(data, dict):
        return {key: as_tensors(value) for key, value in data.items()}
    if isinstance(data, (tuple, list)) and any(
        isinstance(part, (tuple, list, dict)) or part is None or hasattr(part, "shape")
        for part in data
    ):
        return tuple(as_tensors(part) for part in data)
    if isinstance(data, (tf.Tensor, tf.RaggedTensor)):
        return data
    with tf.device("CPU"):  # where data sets read it
        return tf.convert_to_tensor(data if hasattr(data, "shape") else list(data))


def in_memory(dataset: tf.data.Dataset) -> Any:
    """Returns the elements of a data set as tensors [n, ...], in its own structure.

    Raises:
      ValueError: it never ends, is empty, or its elements differ in shape.
    """
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("shard: reshuffle needs a data set that ends: call shard before repeat")
    try:
        parts = list(dataset.batch(_READ_AT_ONCE))
        if not parts:
            raise ValueError("shard: the data has 0 elements")
        with tf.device("CPU"):
            return tf.nest.map_structure(lambda *each: tf.concat(each, 0), *parts)
    except tf.errors.InvalidArgumentError:
        raise ValueError(
            "shard: reshuffle needs elements of equal shapes: call shard before batch, and with "
            "names of files instead of pictures of several sizes"
        ) from None
