"""TernGrad's arithmetic on NumPy arrays: statistics, codes, their sums and means.

It runs on the native code of the TensorFlow ops, with the same bits, and loads no TensorFlow.
Each call computes in the calling thread, without Python's lock.

    found = terngrad.numpy.stats([gradient])
    codes = terngrad.numpy.encode([gradient], found.max_abs, seed=1, step=0, node=0)  # each node
    total = terngrad.numpy.sum([codes, ...], planes=3)                                # of 2 nodes
    (mean,) = terngrad.numpy.decode(total, found.max_abs, nodes=2, shapes=[gradient.shape])

A bucket is several variables, one after the other: M values. Its codes and sums are bit planes,
uint32 [ceil(M / 32), k]: bit i of word [g, j] is bit j of value 32 g + i in two's complement.
Ternary codes of one node have k = 2; sums over N nodes need k = (2 * N).bit_length(). Codes up to L
have more levels (`codec`): then these are (2 * L).bit_length() and (2 * L * N).bit_length().

Every function raises `UnavailableError` where the native code is not built:
`python -m terngrad.ops.build` builds it.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terngrad.layout import DRAWS, MAX_CODES
from terngrad.limits import MAX_NODES, MAX_VARIABLES
from terngrad.ops import array_checks as check
from terngrad.ops import library
from terngrad.ops.library import UnavailableError

__all__ = ["Stats", "UnavailableError", "decode", "encode", "stats", "sum"]

_GROUP = 32  # values in a word
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
      gradients: list of float32 arrays of any shape.

    Raises:
      ValueError: gradients is a single array, or one of them is not float32.
    """
    return _stats(check.gradients(gradients))


def _stats(arrays: Sequence[NDArray[np.float32]]) -> Stats:
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
    codec: str = "ternary",
    draws: str = "independent",
) -> NDArray[np.uint32]:
    """Returns the codes of a bucket.

    A value x gets the ternary code sign(x) with probability min(|x|, bound) / scale, else 0. Codes
    up to L get one of the two values around sign(x) min(|x|, bound) L / scale, so that the mean is
    this. The draw depends only on seed, step, node, variable and the value's index in the variable.

    Args:
      gradients: list of float32 arrays of any shape, the v variables of the bucket: M values.
      scales: float32 [v], value of the code L, at least the largest magnitude after clipping. All
        codes are 0 where scale / L is below 2^-100 or not finite.
      seed: seed of the training, in [0, 2^64).
      step: step of the training, 0 or more; the low 32 bits count.
      node: index of the node, in [0, 65536).
      bounds: float32 [v], magnitudes to clip to; None = no clipping.
      variables: index of each variable in the net, in [0, 65536); None = 0, 1, ...
      firsts: index in its variable of each array's first value; None = all 0.
      codec: "ternary" (L = 1), "5-level" (2), "7-level" (3), "15-level" (7) or "255-level" (127).
      draws: "independent", or "antithetic": nodes 2 k and 2 k + 1 share draws, so that the mean of
        both has less noise.

    Returns:
      uint32 [ceil(M / 32), (2 * L).bit_length()].

    Raises:
      ValueError: a shape, a dtype or a number is not as above, or two arrays have the same values
        of a variable.
    """
    arrays = check.gradients(gradients)
    count = len(arrays)
    scale = check.vector(scales, count, "scales")
    bound = check.vector(np.full(count, np.inf) if bounds is None else bounds, count, "bounds")
    index = check.integers(
        range(count) if variables is None else variables, count, MAX_VARIABLES, "variables"
    )
    first = check.integers([0] * count if firsts is None else firsts, count, 1 << 63, "firsts")
    check.integer(seed, 1 << 64, "seed")
    check.integer(step, 1 << 63, "step")
    check.integer(node, MAX_NODES, "node")
    check.name(codec, MAX_CODES, "codec")
    check.name(draws, DRAWS, "draws")
    check.values_are_distinct(arrays, index, first)
    check.scales_cover(scale, bound, _stats(arrays).max_abs)
    rows = _rows(builtins.sum(values.size for values in arrays))
    words = np.empty((rows, _planes_of(MAX_CODES[codec])), np.uint32)
    sources = (library.Source * count)(
        *(
            (values.ctypes.data, values.size, first[i], index[i], bound[i], scale[i])
            for i, values in enumerate(arrays)
        )
    )
    key = library.NodeKey(int(seed), int(step) & 0xFFFFFFFF, int(node), draws == "antithetic")
    _call("encode", codec.encode(), sources, count, key, rows, words.ctypes.data)
    return words


def sum(words: Sequence[NDArray[np.uint32]], planes: int) -> NDArray[np.uint32]:
    """Returns the sum of buckets.

    Args:
      words: one or more arrays uint32 [G, k] with the same G, codes or sums; k, 2 to 18, may
        differ.
      planes: planes of the sum, 2 to 18, enough for all its values: `(2 * N).bit_length()` are for
        ternary codes of N nodes, and each array is of one node at least.

    Returns:
      uint32 [G, planes].

    Raises:
      ValueError: a shape, a dtype or a number is not as above, or the sum needs more planes.
    """
    arrays = [check.planes(array, f"words[{i}]") for i, array in enumerate(words)]
    if not arrays:
        raise ValueError("words has no arrays; must have one or more")
    check.integer(planes, check.MAX_PLANES + 1, "planes", low=2)
    rows = len(arrays[0])
    for i, array in enumerate(arrays):
        if len(array) != rows:
            raise ValueError(f"words[{i}] has {len(array)} rows; must have {rows}, as words[0]")
    if planes < (least := _planes_of(len(arrays))):
        nodes = "1 node" if len(arrays) == 1 else f"{len(arrays)} nodes"
        raise ValueError(f"planes is {planes}; must be {least} or more for {nodes}")
    most = builtins.sum(check.largest_in(array.shape[1]) for array in arrays)
    if _planes_of(most) > check.MAX_PLANES and len(arrays) > 2:  # all at once might wrap
        *first, last = arrays
        total = functools.reduce(lambda one, other: sum([one, other], check.MAX_PLANES), first)
        return sum([total, last], planes)
    width = max(planes, min(_planes_of(most), check.MAX_PLANES))
    inputs = (library.Planes * len(arrays))(*((a.ctypes.data, a.shape[1]) for a in arrays))
    total = np.empty((rows, width), np.uint32)
    _call("sum", inputs, len(arrays), width, rows, total.ctypes.data)
    if most > (limit := check.largest_in(planes)) and check.exceed(total, limit):
        if planes == check.MAX_PLANES:
            raise ValueError(f"the sum has a value beyond {limit}; sums over nodes have none")
        raise ValueError(f"planes is {planes}; must be more: the sum has a value beyond {limit}")
    return np.ascontiguousarray(total[:, :planes])


def decode(
    words: NDArray[np.uint32],
    scales: ArrayLike,
    nodes: int,
    shapes: Sequence[Sequence[int]],
    *,
    codec: str = "ternary",
) -> list[NDArray[np.float32]]:
    """Returns the means of a bucket's variables: fl(fl(unit / nodes) * sum).

    The unit, the value of a code of 1, is the scale, and of codes up to L fl(scale * fl(1 / L)).

    Args:
      words: uint32 [ceil(M / 32), k], the sums, each in [-L * nodes, L * nodes]; k is
        `(2 * L * nodes).bit_length()` to 18.
      scales: float32 [v]; NaN and those with a unit below 2^-100 count as 0. Give infinity where a
        gradient is not finite: its variable's means are then infinite or NaN.
      nodes: number of nodes in the sums, 1 or more.
      shapes: shapes of the v variables, in the bucket's order.
      codec: of the codes; see `encode`.

    Returns:
      float32 arrays of these shapes.

    Raises:
      ValueError: a shape, a dtype or a number is not as above, or the sums are of more nodes.
    """
    array = check.planes(words, "words")
    scale = check.vector(scales, len(shapes), "scales")
    check.integer(nodes, MAX_NODES + 1, "nodes", low=1)
    check.name(codec, MAX_CODES, "codec")
    max_code = MAX_CODES[codec]
    largest = nodes * max_code
    shapes = [check.shape(shape, f"shapes[{i}]") for i, shape in enumerate(shapes)]
    values = builtins.sum(math.prod(shape) for shape in shapes)
    rows = _rows(values)
    if len(array) != rows:
        raise ValueError(f"words has {len(array)} rows; must have {rows} for these shapes")
    if values % _GROUP and np.any(array[-1] >> np.uint32(values % _GROUP)):
        raise ValueError(f"words has more values than the {values} of these shapes")
    if array.shape[1] < (least := _planes_of(largest)):
        raise ValueError(f"words has {array.shape[1]} planes; sums of {nodes} nodes have {least}")
    if check.exceed(array, largest):
        raise ValueError(f"words has a value beyond {largest}; sums of {nodes} nodes have none")
    means = [np.empty(shape, np.float32) for shape in shapes]
    unit = scale * np.float32(1.0 / max_code)
    usable = np.where(unit >= _SMALLEST_SCALE, unit, np.float32(0))
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


def _planes_of(largest: int) -> int:
    return (2 * largest).bit_length()


def _rows(values: int) -> int:
    return -(-values // _GROUP)
