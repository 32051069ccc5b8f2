"""Digests of the processes' data, by which they compare it without reading all of it."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_ROWS = 16  # of an array that are digested, spread over it
_ELEMENTS = 4  # of a data set that are digested, the first ones
# Data sets that pass on all elements of those that they read, or the first ones.
_WHOLE = (
    "AssertCardinality",
    "Batch",
    "Cache",
    "DenseToRagged",
    "Map",
    "Options",
    "PaddedBatch",
    "ParallelBatch",
    "ParallelMap",
    "Prefetch",
    "Range",
    "Rebatch",
    "Repeat",
    "Restructured",
    "Shuffle",
    "TFRecord",
    "Take",
    "Tensor",
    "TensorSlice",
    "TextLine",
    "Unbatch",
    "Zip",
)


def digest(data: Any) -> str:
    """Returns a digest that is equal for equal data in the same order; "" = unknown.

    It is that of rows spread over an array, or of the first elements of the data sets from which a
    data set is made, such as the arrays of `from_tensor_slices`: nothing is drawn from a shuffle.
    Of paths only the names of files count. Data whose rows are all alike has the digest "".

    Args:
      data: what `Group.shard` takes.
    """
    try:
        if isinstance(data, tf.data.Dataset):
            found = [_of_source(source) for source in sources(data)]
        else:
            found = [_of_array(array) for array in _arrays_of(data)]
    except Exception:  # data are of any kind; reading them raises the error, too
        return ""
    return "-".join(found) if any(found) else ""


def digest_of_whole(data: Any) -> str:
    """Returns the digest of data of which nothing was left out; "" also if that is not certain."""
    if isinstance(data, tf.data.Dataset):
        found = chain(data)
        return digest(data) if all(_kind(each) in _WHOLE for each in found) else ""
    is_array = data is not None and not _is_python_iterator(data)
    return digest(data) if is_array else ""


def chain(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a data set and all those from which it is made."""
    waiting = [dataset]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += getattr(found, "_inputs", list)()


def sources(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the data sets that are made from no others."""
    return [each for each in chain(dataset) if not getattr(each, "_inputs", list)()]


def _arrays_of(data: Any) -> Iterator[Any]:
    """Yields the arrays, data frames and lists of scalars in tuples, lists and dicts."""
    if isinstance(data, dict):
        for key in sorted(data, key=str):
            yield from _arrays_of(data[key])
    elif isinstance(data, (tuple, list)) and any(_is_nested(part) for part in data):
        for part in data:
            yield from _arrays_of(part)
    elif data is not None and (hasattr(data, "shape") or hasattr(data, "__len__")):
        yield data


def _kind(dataset: tf.data.Dataset) -> str:
    return type(dataset).__name__.strip("_").partition("Dataset")[0]


def _is_nested(part: Any) -> bool:
    return part is None or isinstance(part, (tuple, list, dict)) or hasattr(part, "shape")


def _is_python_iterator(data: Any) -> bool:
    """Returns whether data is a generator or PyDataset, from which nothing may be drawn."""
    return not isinstance(data, (tuple, list, dict, range)) and not hasattr(data, "shape")


def _of_source(dataset: tf.data.Dataset) -> str:
    if _kind(dataset) == "Random":  # it has a seed of its own
        return ""
    rows = [tf.nest.flatten(element) for element in itertools.islice(dataset, _ELEMENTS)]
    if len(rows) == 1:  # of `from_tensors`, an element may be all of the data
        return "-".join(_of_array(tensor) for tensor in rows[0] if tensor.shape.rank)
    return _of_rows([b"".join(map(_content, row)) for row in rows])


def _of_array(array: Any) -> str:
    count = len(array) if not hasattr(array, "shape") else int(array.shape[0] or 0)
    places = np.unique(np.linspace(0, max(count - 1, 0), _ROWS).astype(int)) if count else []
    # Slices, because an index chooses a column of a data frame.
    rows = _of_rows([_content(array[int(i) : int(i) + 1]) for i in places])
    return f"{count}:{rows}" if rows else ""


def _of_rows(rows: list[bytes]) -> str:
    """Returns a checksum; "" if rows are alike, so that their order means nothing."""
    if len(set(rows)) < 2:
        return ""
    return f"{zlib.crc32(b''.join(rows)):08x}"


def _content(value: Any) -> bytes:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return repr(value).encode()
    array = np.asarray(value)
    if array.dtype.kind in "OSU":  # hosts may have their files in other folders
        return repr([_name(each) for each in array.ravel().tolist()]).encode()
    return array.tobytes()


def _name(value: Any) -> Any:
    return os.path.basename(value) if isinstance(value, (str, bytes)) else value
