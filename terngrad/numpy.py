"""TernGrad's arithmetic on arrays, also on GPUs: statistics, codes, their sums and means.

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

By default each variable has one scale. With `scale_by` "channel" each index of its last axis has
its own, with "block:N" each N neighbours; N is a multiple of 128. A variable whose parts would have
fewer than 16 values has one scale in any case. Vectors of p numbers, such as scales, have one for
each part of the first variable, then of the second one, and so on.

Arrays may lie on a GPU: those of CuPy, or tensors of PyTorch 2.3 or later. Then all arrays of a
call must be of one package and on one GPU, gradients may be float16 or bfloat16 too, scales and
bounds may be lists of numbers, and results are arrays of the package on that GPU, with the bits of
the CPU's. Kernels run on the package's current stream, and no call waits for one. So values on a
GPU are not checked: a sum that needs more planes wraps, and values above the scale get the code L.
The first call in a process compiles the kernels with NVRTC (`nvidia-cuda-nvrtc-cu12`), or takes
them from ~/.cache/terngrad. Calls cannot be captured in a CUDA graph. JAX's arrays on a GPU are
refused, because results cannot be made as such; `cupy.from_dlpack` takes them.

Every function raises `UnavailableError` where the native code is not built, which
`python -m terngrad.ops.build` does, and where arrays are on a GPU that cannot run it: the message
says why.
"""

from __future__ import annotations

import builtins
import functools
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terngrad.gpu import arrays as gpu
from terngrad.layout import FEEDBACK_CODES
from terngrad.ops import array_checks as check
from terngrad.ops import library
from terngrad.ops.library import UnavailableError
from terngrad.parts import Parts

__all__ = ["Stats", "UnavailableError", "decode", "encode", "stats", "sum"]

_SMALLEST_SCALE = np.float32(2.0**-100)


class Stats(NamedTuple):
    """Statistics of the p parts of arrays, each field float32 [p].

    Attributes:
      sum: sums of the values.
      sum_of_squares: sums of their squares.
      max_abs: largest magnitudes; NaN if a part has a NaN, 0 if it is empty or all denormal.
    """

    sum: NDArray[np.float32]
    sum_of_squares: NDArray[np.float32]
    max_abs: NDArray[np.float32]


def stats(gradients: Sequence[NDArray[np.float32]], *, scale_by: str = "variable") -> Stats:
    """Returns the statistics of arrays.

    Args:
      gradients: list of float32 arrays of any shape.
      scale_by: what the values of a part have in common, see above.

    Raises:
      ValueError: gradients is a single array, one of them is not float32, or scale_by is unknown.
    """
    if gpu.are_on_gpu(gradients):
        return Stats(*gpu.stats(gradients, scale_by))
    arrays = check.gradients(gradients)
    return _stats(arrays, check.parts_of((values.shape for values in arrays), scale_by))


def _stats(arrays: Sequence[NDArray[np.float32]], parts: Sequence[Parts]) -> Stats:
    total = builtins.sum(own.count for own in parts)
    found, first = Stats(*np.empty((3, total), np.float32)), 0
    for values, own in zip(arrays, parts, strict=True):
        addresses = (field[first:].ctypes.data for field in found)
        _call("stats", values.ctypes.data, values.size, library.Parts(*own), *addresses)
        first += own.count
    return found


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
    scale_by: str = "variable",
) -> NDArray[np.uint32]:
    """Returns the codes of a bucket.

    A value x gets the ternary code sign(x) with probability min(|x|, bound) / scale, else 0. Codes
    up to L get one of the two values around sign(x) min(|x|, bound) L / scale, so that the mean is
    this. The draw depends only on seed, step, node, variable and the value's index in the variable.

    Args:
      gradients: list of float32 arrays of any shape, the v variables of the bucket: M values.
      scales: float32 [p], value of the code L; without feedback at least the largest magnitude
        after clipping. All codes are 0 where scale / L is below 2^-100 or not finite.
      seed: seed of the training, in [0, 2^64).
      step: step of the training, 0 or more; the low 32 bits count.
      node: index of the node, in [0, 65536).
      bounds: float32 [p], magnitudes to clip to; None = no clipping.
      variables: index of each variable in the net, in [0, 65536); None = 0, 1, ...
      firsts: index in its variable of each array's first value; None = all 0.
      codec: "ternary" (L = 1), "5-level" (2), "7-level" (3), "15-level" (7) or "255-level" (127).
        "ternary-feedback" (1) and "5-level-feedback" (2) take the code next to x L / scale: they
        draw nothing and have no bounds. Add the rounding error of the last call to the gradients.
      draws: "independent", or "antithetic": nodes 2 k and 2 k + 1 share draws, so that the mean of
        both has less noise.
      scale_by: what the values of a part have in common, see above. The shape of an array decides,
        also where it is a range of a variable.

    Returns:
      uint32 [ceil(M / 32), (2 * L).bit_length()].

    Raises:
      ValueError: a shape, a dtype or a number is not as above, or two arrays have the same values
        of a variable.
    """
    if gpu.are_on_gpu(gradients, scales, bounds):
        return gpu.encode(
            gradients,
            scales,
            seed=seed,
            step=step,
            node=node,
            bounds=bounds,
            variables=variables,
            firsts=firsts,
            codec=codec,
            draws=draws,
            scale_by=scale_by,
        )
    arrays = check.gradients(gradients)
    parts = check.parts_of((values.shape for values in arrays), scale_by)
    count, total = len(arrays), builtins.sum(own.count for own in parts)
    scale = check.vector(scales, total, "scales")
    bound = check.vector(np.full(total, np.inf) if bounds is None else bounds, total, "bounds")
    index, first, key = check.encoding(
        arrays,
        seed=seed,
        step=step,
        node=node,
        variables=variables,
        firsts=firsts,
        codec=codec,
        draws=draws,
    )
    if codec not in FEEDBACK_CODES:  # these keep what is larger for the next call
        check.scales_cover(scale, bound, _stats(arrays, parts).max_abs)
    rows = check.group_count(builtins.sum(values.size for values in arrays))
    words = np.empty((rows, check.plane_count(check.CODES[codec])), np.uint32)
    # The kernels read this memory, so it must live until they are done.
    by_variable = [_of_parts(parts, each) for each in (bound, _rates(scale, check.CODES[codec]))]
    sources = (library.Source * count)(
        *(
            (values.ctypes.data, values.size, first[i], index[i], tuple(parts[i]), *numbers)
            for i, (values, *numbers) in enumerate(
                zip(arrays, *map(_addresses, by_variable), strict=True)
            )
        )
    )
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
    if gpu.are_on_gpu(words):
        return gpu.add(words, planes)
    arrays = [check.planes(array, f"words[{i}]") for i, array in enumerate(words)]
    if not arrays:
        raise ValueError("words has no arrays; must have one or more")
    check.integer(planes, check.MAX_PLANES + 1, "planes", low=2)
    rows = len(arrays[0])
    for i, array in enumerate(arrays):
        if len(array) != rows:
            raise ValueError(f"words[{i}] has {len(array)} rows; must have {rows}, as words[0]")
    check.planes_suffice(planes, len(arrays))
    bound = builtins.sum(check.largest_in(array.shape[1]) for array in arrays)
    if check.plane_count(bound) > check.MAX_PLANES and len(arrays) > 2:  # all at once might wrap
        *first, last = arrays
        total = functools.reduce(lambda one, other: sum([one, other], check.MAX_PLANES), first)
        return sum([total, last], planes)
    width = max(planes, min(check.plane_count(bound), check.MAX_PLANES))
    inputs = (library.Planes * len(arrays))(*((a.ctypes.data, a.shape[1]) for a in arrays))
    total = np.empty((rows, width), np.uint32)
    _call("sum", inputs, len(arrays), width, rows, total.ctypes.data)
    if bound > (limit := check.largest_in(planes)) and check.exceed(total, limit):
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
    scale_by: str = "variable",
) -> list[NDArray[np.float32]]:
    """Returns the means of a bucket's variables: fl(fl(unit / nodes) * sum).

    The unit, the value of a code of 1, is the scale, and of codes up to L fl(scale * fl(1 / L)).

    Args:
      words: uint32 [ceil(M / 32), k], the sums, each in [-L * nodes, L * nodes]; k is
        `(2 * L * nodes).bit_length()` to 18.
      scales: float32 [p]; NaN and those with a unit below 2^-100 count as 0. Give infinity where a
        gradient is not finite: the means of its part are then infinite or NaN.
      nodes: number of nodes in the sums, 1 to 65536 / L.
      shapes: shapes of the v variables, in the bucket's order.
      codec: of the codes; see `encode`.
      scale_by: what the values of a part have in common, see above.

    Returns:
      float32 arrays of these shapes.

    Raises:
      ValueError: a shape, a dtype or a number is not as above, or the sums are of more nodes.
    """
    if gpu.are_on_gpu(words, scales):
        return gpu.decode(words, scales, nodes, shapes, codec=codec, scale_by=scale_by)
    array = check.planes(words, "words")
    shapes, parts, nodes = check.decoding(shapes, nodes, codec=codec, scale_by=scale_by)
    max_code = check.CODES[codec]
    largest = nodes * max_code
    scale = check.vector(scales, builtins.sum(own.count for own in parts), "scales")
    values = builtins.sum(math.prod(shape) for shape in shapes)
    rows = check.group_count(values)
    check.planes_fit(array.shape, rows, nodes, largest)
    if values % check.GROUP and np.any(array[-1] >> np.uint32(values % check.GROUP)):
        raise ValueError(f"words has more values than the {values} of these shapes")
    if check.exceed(array, largest):
        raise ValueError(f"words has a value beyond {largest}; sums of {nodes} nodes have none")
    means = [np.empty(shape, np.float32) for shape in shapes]
    unit = scale * np.float32(1.0 / max_code)
    usable = np.where(unit >= _SMALLEST_SCALE, unit, np.float32(0))
    units = _of_parts(parts, usable / np.float32(nodes))
    targets = (library.Target * len(means))(
        *(
            (mean.ctypes.data, mean.size, tuple(own), address)
            for mean, own, address in zip(means, parts, _addresses(units), strict=True)
        )
    )
    sums = library.Planes(array.ctypes.data, array.shape[1])
    _call("decode", sums, targets, len(means), rows)
    return means


def _rates(scales: NDArray[np.float32], max_code: int) -> NDArray[np.float32]:
    """Returns 2^16 / unit, as RateOf of cc/lib/kernels.h does."""
    units = scales * np.float32(1.0 / max_code)
    is_usable = (units >= _SMALLEST_SCALE) & (units < np.inf)
    return np.divide(np.float32(2.0**16), units, out=np.zeros_like(units), where=is_usable)


def _of_parts(parts: Sequence[Parts], numbers: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Returns the numbers of each variable's parts as the kernels read them."""
    found, first = [], 0
    for own in parts:
        found.append(np.resize(numbers[first : first + own.count], own.count + library.PADDING))
        first += own.count
    return found


def _addresses(arrays: Sequence[NDArray[np.float32]]) -> list[int]:
    return [array.ctypes.data for array in arrays]


@functools.cache
def _path() -> bytes:
    wanted = os.environ.get("TERNGRAD_SIMD", "")
    return library.choose_path(library.load_arrays(), wanted).encode()


def _call(name: str, *arguments: object) -> None:
    done = getattr(library.load_arrays(), f"terngrad_{name}")(_path(), *arguments)
    assert done, name  # the arguments were checked
