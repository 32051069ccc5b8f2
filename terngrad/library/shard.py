"""The share of the data that one of several processes reads."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from terngrad.library.data_digest import chain
from terngrad.library.reshuffle import EpochOrder, as_tensors, in_memory, reordered

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
        arrays, what = in_memory(data), "elements"
    else:
        row_count(data)
        arrays, what = as_tensors(data), "rows"
    count = row_count(tf.nest.flatten(arrays))
    order = EpochOrder(count, seed)
    return reordered(arrays, order, _each(count, what, rank, size), rank, size), order


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
