"""TernGrad's arithmetic on NumPy arrays: statistics, ternary codes, their sums and means.

It runs on the native code of the TensorFlow ops, with the same bits, and loads no TensorFlow.
Each call computes in the calling thread, without Python's lock.

    found = terngrad.numpy.stats([gradient])
    codes = terngrad.numpy.encode([gradient], found.max_abs, seed=1, step=0, node=0)  # each node
    total = terngrad.numpy.sum([codes, ...], planes=3)                                # of 2 nodes
    (mean,) = terngrad.numpy.decode(total, found.max_abs, nodes=2, shapes=[gradient.shape])

A bucket is several variables, one after the other: M values. Its codes and sums are bit planes,
uint32 [ceil(M / 32), k]: bit i of word [g, j] is bit j of value 32 g + i in two's complement.
Codes of one node have k = 2; sums over N nodes need k = (2 * N).bit_length().

Every function raises `UnavailableError` where the native code is not built:
`python -m terngrad.ops.build` builds it.
"""

from __future__ import annotations

import builtins
import functools
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terngrad.limits import MAX_NODES, MAX_VARIABLES
from terngrad.ops import library
from terngrad.ops.library import UnavailableError

__all__ = ["Stats", "UnavailableError", "decode", "encode", "stats", "sum"]

_GROUP = 32  # values in a word
_MAX_PLANES = 18
_SMALLEST_SCALE = np.float32(2.0**-100)


class Stats(NamedTuple):
    """Statistics of v arrays, each field float32 [v].

    Attributes:
      sum: sums of the values.
      sum_of_squares: sums of their squares.
      max_abs: largest magnitudes; NaN if an array has a NaN, 0 if it is empty or all denormal.
    """

    sum: NDArray[np.float32]
    sum_of_squares: NDArray[np.float32]
    max_abs: NDArray[np.float32]


def stats(gradients: Sequence[NDArray[np.float32]]) -> Stats:
    """Returns the statistics of arrays.

    Args:
      gradients: float32 arrays of any shape.

    Raises:
      ValueError: an array is not float32.
    """
    arrays = [_floats(values, f"gradients[{i}]") for i, values in enumerate(gradients)]
    found = np.empty((len(arrays), 3), np.float32)
    for values, row in zip(arrays, found, strict=True):
        _call("stats", values.ctypes.data, values.size, row.ctypes.data)
    return Stats(*np.ascontiguousarray(found.T))


def encode(
    gradients: Sequence[NDArray[np.float32]],
    scales: ArrayLike,
    *,
    seed: int,
    step: int,
    node: int,
    bounds: ArrayLike | None = None,
    variables: Sequence[int] | None = None,
    firsts: Sequence[int] | None = None,
) -> NDArray[np.uint32]:
    """Returns the ternary codes of a bucket.

    A value x gets the code sign(x) with probability min(|x|, bound) / scale, else 0. The draw
    depends only on seed, step, node, variable and the value's index in the variable.

    Args:
      gradients: float32 arrays of any shape, the v variables of the bucket: M values.
      scales: float32 [v], value of the code 1, at least the largest clipped magnitude. All codes
        are 0 where it is below 2^-100 or not finite.
      seed: seed of the training, in [0, 2^64).
      step: step of the training, 0 or more; the low 32 bits count.
      node: index of the node, in [0, 65536).
      bounds: float32 [v], magnitudes to clip to; None = no clipping.
      variables: index of each variable in the net, in [0, 65536); None = 0, 1, ...
      firsts: index in its variable of each array's first value; None = all 0.

    Returns:
      uint32 [ceil(M / 32), 2].

    Raises:
      ValueError: a shape, a dtype or a number is not as above.
    """
    arrays = [_floats(values, f"gradients[{i}]") for i, values in enumerate(gradients)]
    count = len(arrays)
    scale = _vector(scales, count, "scales")
    bound = _vector(np.full(count, np.inf) if bounds is None else bounds, count, "bounds")
    index = _integers(
        range(count) if variables is None else variables, count, MAX_VARIABLES, "variables"
    )
    first = _integers([0] * count if firsts is None else firsts, count, 1 << 63, "firsts")
    _check_range([seed], 1 << 64, "seed")
    _check_range([step], 1 << 63, "step")
    _check_range([node], MAX_NODES, "node")
    rows = _rows(values.size for values in arrays)
    words = np.empty((rows, 2), np.uint32)
    sources = (library.Source * count)(
        *(
            (values.ctypes.data, values.size, first[i], index[i], bound[i], scale[i])
            for i, values in enumerate(arrays)
        )
    )
    key = library.NodeKey(int(seed), int(step) & 0xFFFFFFFF, int(node))
    _call("encode", sources, count, key, rows, words.ctypes.data)
    return words


def sum(words: Sequence[NDArray[np.uint32]], planes: int) -> NDArray[np.uint32]:
    """Returns the sum of buckets, modulo 2^planes.

    Args:
      words: one or more arrays uint32 [G, k] with the same G; k, 1 to 18, may differ.
      planes: planes of the sum, 1 to 18.

    Returns:
      uint32 [G, planes].

    Raises:
      ValueError: a shape, a dtype or a number is not as above.
    """
    if not len(words):
        raise ValueError("words has no arrays; must have one or more")
    arrays = [_planes(array, f"words[{i}]") for i, array in enumerate(words)]
    _check_range([planes], _MAX_PLANES + 1, "planes", low=1)
    rows = len(arrays[0])
    for i, array in enumerate(arrays):
        if len(array) != rows:
            raise ValueError(f"words[{i}] has {len(array)} rows; must have {rows}, as words[0]")
    inputs = (library.Planes * len(arrays))(*((a.ctypes.data, a.shape[1]) for a in arrays))
    total = np.empty((rows, planes), np.uint32)
    _call("sum", inputs, len(arrays), planes, rows, total.ctypes.data)
    return total


def decode(
    words: NDArray[np.uint32],
    scales: ArrayLike,
    nodes: int,
    shapes: Sequence[Sequence[int]],
) -> list[NDArray[np.float32]]:
    """Returns the means of a bucket's variables: fl(fl(scale / nodes) * sum).

    Args:
      words: uint32 [ceil(M / 32), k], the sums; k is 1 to 18.
      scales: float32 [v]; NaN and those below 2^-100 count as 0. Give infinity where a gradient is
        not finite: its variable's means are then infinite or NaN.
      nodes: number of nodes in the sums, 1 or more.
      shapes: shapes of the v variables, in the bucket's order.

    Returns:
      float32 arrays of these shapes.

    Raises:
      ValueError: a shape, a dtype or a number is not as above.
    """
    array = _planes(words, "words")
    scale = _vector(scales, len(shapes), "scales")
    _check_range([nodes], MAX_NODES + 1, "nodes", low=1)
    for i, shape in enumerate(shapes):
        _check_range(shape, 1 << 63, f"shapes[{i}]")
    means = [np.empty(shape, np.float32) for shape in shapes]
    rows = _rows(mean.size for mean in means)
    if len(array) != rows:
        raise ValueError(f"words has {len(array)} rows; must have {rows} for these shapes")
    usable = np.where(scale >= _SMALLEST_SCALE, scale, np.float32(0))
    units = usable / np.float32(nodes)
    targets = (library.Target * len(means))(
        *((m.ctypes.data, m.size, unit) for m, unit in zip(means, units, strict=True))
    )
    sums = library.Planes(array.ctypes.data, array.shape[1])
    _call("decode", sums, targets, len(means), rows)
    return means


@functools.cache
def _path() -> bytes:
    return library.choose_path(library.load_arrays()).encode()


def _call(name: str, *arguments: object) -> None:
    done = getattr(library.load_arrays(), f"terngrad_{name}")(_path(), *arguments)
    assert done, name  # the arguments were checked


def _floats(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}; must be float32")
    return np.ascontiguousarray(array)


def _planes(words: NDArray[np.uint32], name: str) -> NDArray[np.uint32]:
    array = np.asarray(words)
    if array.dtype != np.uint32 or array.ndim != 2 or not 1 <= array.shape[1] <= _MAX_PLANES:
        what = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"{name} is {what}; must be uint32 [G, 1 to {_MAX_PLANES}]")
    return np.ascontiguousarray(array)


def _vector(values: ArrayLike, count: int, name: str) -> NDArray[np.float32]:
    array = np.asarray(values, np.float32)
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; must have {(count,)}")
    return array


def _integers(values: Sequence[int], count: int, end: int, name: str) -> list[int]:
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries; must have {count}, as gradients has")
    _check_range(values, end, name)
    return [int(value) for value in values]


def _check_range(values: Sequence[int], end: int, name: str, low: int = 0) -> None:
    for value in values:
        if not isinstance(value, numbers.Integral):
            raise ValueError(f"{name} is {value!r}; must be an integer")
        if not low <= value < end:
            raise ValueError(f"{name} is {value}; must be {low} to {end - 1}")


def _rows(sizes: Iterable[int]) -> int:
    return math.ceil(builtins.sum(sizes) / _GROUP)
