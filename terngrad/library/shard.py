"""The share of the data that one of several processes reads."""

from __future__ import annotations

from typing import TypeVar

import tensorflow as tf

Data = TypeVar("Data")


def shard(data: Data, rank: int, size: int) -> Data:
    """Returns every `size`-th element of a data set, or every `size`-th row of arrays.

    All processes get equally many; see `Group.shard`.

    Raises:
      ValueError: there is less than one for each process, or arrays differ in length.
    """
    if size == 1:
        return data
    if isinstance(data, tf.data.Dataset):
        return _elements(data, rank, size)
    return _rows(data, rank, size)


def _elements(dataset: tf.data.Dataset, rank: int, size: int) -> tf.data.Dataset:
    if rank == 0 and _is_shuffled_at_random(dataset):
        print(
            "shard: Warning: the data set is shuffled before it is dealt out, in another order on "
            "each worker, so some elements are seen twice and others never: call shard before "
            "shuffle, or tf.keras.utils.set_random_seed with the same seed on all.",
            flush=True,
        )
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        _tell(f"up to {size - 1} of its last elements are left out", rank, size)
        whole = dataset.window(size, drop_remainder=True)
        own = lambda *rows: tf.data.Dataset.zip(*rows).skip(rank).take(1)
        return whole.flat_map(own)
    each = _each(count, "elements", rank, size)
    return dataset.shard(size, rank).take(each)


def _is_shuffled_at_random(dataset: tf.data.Dataset) -> bool:
    """Returns whether each process gets another order, as far as TensorFlow lets it be seen."""
    waiting = [dataset]
    while waiting:
        found = waiting.pop()
        if "Shuffle" in type(found).__name__:
            seeds = [getattr(found, name, None) for name in ("_seed", "_seed2")]
            if all(seed is not None and int(seed) == 0 for seed in seeds):
                return True
        waiting += getattr(found, "_inputs", list)()
    return False


def _rows(data: Data, rank: int, size: int) -> Data:
    arrays = tf.nest.flatten(data)
    counts = {len(array) for array in arrays}
    if len(counts) != 1:
        raise ValueError(f"shard: arrays must have equally many rows; they have {sorted(counts)}")
    (count,) = counts
    each = _each(count, "rows", rank, size)
    return tf.nest.map_structure(lambda array: array[rank : each * size : size], data)


def _each(count: int, what: str, rank: int, size: int) -> int:
    """Returns how many each process gets, and says what is left out."""
    each, rest = divmod(count, size)
    if each == 0:
        raise ValueError(f"shard: the data has {count} {what}; {size} workers need one each")
    if rest:
        _tell(f"{rest} of {count} {what} are left out", rank, size)
    return each


def _tell(what: str, rank: int, size: int) -> None:
    if rank == 0:
        print(f"shard: {what}, so that each of {size} workers gets equally many.", flush=True)
