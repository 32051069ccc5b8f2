"""The share of the data that one of several processes reads, also in a new order in each epoch."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from terngrad.library.data_digest import chain

Data = TypeVar("Data")


def shard(data: Data, rank: int, size: int) -> Data:
    """Returns every `size`-th element of a data set, or every `size`-th row of arrays.

    All processes get equally many; see `Group.shard`.

    Raises:
      TypeError: the data is of a kind that has no rows.
      ValueError: there is less than one for each process, or arrays differ in length.
    """
    if isinstance(data, tf.data.Dataset):
        return data if size == 1 else _elements(data, rank, size)
    count = row_count(data)
    if size == 1:
        return data
    each = _each(count, "rows", rank, size)
    return rows_of(data, slice(rank, each * size, size))


def shard_anew(data: Any, rank: int, size: int, seed: int) -> tuple[tf.data.Dataset, EpochOrder]:
    """Returns a data set of every `size`-th row in an order that is new in each epoch.

    Also returns the order, which knows the epoch. See `Group.shard`.

    Raises:
      TypeError: the data is of a kind that has no rows, or the seed is no integer.
      ValueError: see `shard`; or the data set cannot be held in memory, or the seed is negative.
    """
    EpochOrder(0, seed)  # before anything is read
    if isinstance(data, tf.data.Dataset):
        _warn_of_seeds(data, rank)
        arrays, what = _in_memory(data), "elements"
    else:
        row_count(data)
        arrays, what = _as_tensors(data), "rows"
    count = row_count(tf.nest.flatten(arrays))
    order = EpochOrder(count, seed)
    return _reordered(arrays, order, _each(count, what, rank, size), rank, size), order


def rows_of(data: Data, chosen: slice) -> Data:
    """Returns some rows of arrays, data frames and lists, in their tuples, lists and dicts."""
    return _map(data, lambda array: array[chosen])


def row_count(data: Any) -> int:
    """Returns how many rows arrays have.

    Raises:
      TypeError: the data is of a kind that has no rows.
      ValueError: arrays differ in length.
    """
    counts: list[int] = []
    _map(data, lambda array: counts.append(_length(array)))
    if len(found := sorted({*counts})) != 1:
        raise ValueError(f"shard: arrays must have equally many rows; they have {found}")
    return found[0]


def _warn_of_seeds(dataset: tf.data.Dataset, rank: int) -> None:
    if rank == 0 and [0, 0] in seeds_of(dataset):
        print(
            "shard: Warning: the data set is shuffled before it is dealt out, in another order on "
            "each worker, so some elements are seen twice and others never: call shard before "
            "shuffle, or tf.keras.utils.set_random_seed with the same seed on all.",
            flush=True,
        )


def _elements(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    _warn_of_seeds(dataset, rank)
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        _log(f"up to {size - 1} of its last elements are left out", rank, size)
        whole = dataset.window(size, drop_remainder=True)
        is_tuple = isinstance(dataset.element_spec, tuple)
        element = lambda *parts: parts if is_tuple else parts[0]
        own = lambda *parts: tf.data.Dataset.zip(element(*parts)).skip(rank).take(1)
        return whole.flat_map(own)
    each = _each(count, "elements", rank, size)
    return dataset.shard(size, rank).take(each)


def seeds_of(dataset: tf.data.Dataset) -> list[list[int]]:
    """Returns the seeds of a data set's shuffles, as far as TensorFlow lets them be seen.

    With seeds of 0 each process gets another order.
    """
    shuffles = [found for found in chain(dataset) if "Shuffle" in type(found).__name__]
    own = [[getattr(found, name, None) for name in ("_seed", "_seed2")] for found in shuffles]
    return [[-1 if seed is None else int(seed) for seed in seeds] for seeds in own]


def _map(data: Any, change: Callable[[Any], Any], *, within_list: bool = False) -> Any:
    """Returns tuples, lists or dicts of arrays with each array changed; None stays."""
    if data is None:
        return None
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        return change(data)
    if isinstance(data, dict):
        return {key: _map(value, change) for key, value in data.items()}
    is_row = _is_row_of_scalars(data)
    if is_row and not within_list:
        return change(data)
    if isinstance(data, (tuple, list)) and not is_row:
        parts = [_map(part, change, within_list=isinstance(data, list)) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    kind = "a list of lists" if is_row else type(data).__name__
    raise TypeError(
        f"shard: cannot deal out {kind}; allowed are tf.data.Dataset, arrays, tensors, data frames "
        "and lists of strings or numbers, also in tuples, lists and dicts. Others choose their "
        "batches by group.rank and group.size"
    )


def _is_row_of_scalars(data: Any) -> bool:
    """Returns whether the data is a list, tuple or range of numbers or strings."""
    if not isinstance(data, (tuple, list, range)) or hasattr(data, "_fields"):
        return False
    return all(isinstance(each, (str, bytes, numbers.Number, np.generic)) for each in data)


def _length(array: Any) -> int:
    if not hasattr(array, "shape"):
        return len(array)
    if not len(array.shape):
        raise ValueError("shard: arrays must have rows; there is a scalar")
    return int(array.shape[0])


def _each(count: int, what: str, rank: int, size: int) -> int:
    """Returns how many each process gets, and says what is left out."""
    each, rest = divmod(count, size)
    if each == 0:
        has = f"{count} {what[:-1] if count == 1 else what}"
        raise ValueError(f"shard: the data has {has}; {size} workers need one each")
    if rest:
        _log(f"{rest} of {count} {what} are left out", rank, size)
    return each


def _log(what: str, rank: int, size: int) -> None:
    if rank == 0:
        print(f"shard: {what}, so that each of {size} workers gets equally many.", flush=True)


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


def _reordered(arrays: Any, order: EpochOrder, each: int, rank: int, size: int) -> tf.data.Dataset:
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


def _as_tensors(data: Any) -> Any:
    """Returns arrays, data frames and lists of scalars as tensors, in tuples and dicts.

    Raises:
      ValueError: None stands in the place of an array.
    """
    if data is None:
        raise ValueError("shard: reshuffle makes a data set, which cannot hold None: leave it out")
    if isinstance(data, dict):
        return {key: _as_tensors(value) for key, value in data.items()}
    if isinstance(data, (tuple, list)) and any(
        isinstance(part, (tuple, list, dict)) or part is None or hasattr(part, "shape")
        for part in data
    ):
        return tuple(_as_tensors(part) for part in data)
    if isinstance(data, (tf.Tensor, tf.RaggedTensor)):
        return data
    with tf.device("CPU"):  # where data sets read it
        return tf.convert_to_tensor(data if hasattr(data, "shape") else list(data))


def _in_memory(dataset: tf.data.Dataset) -> Any:
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
