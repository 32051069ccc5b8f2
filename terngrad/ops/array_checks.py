"""Checks of the arguments of `terngrad.numpy`; they return them for the native code.

All raise ValueError, which names the argument, what it is and what it must be.
"""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terngrad import parts
from terngrad.layout import DRAWS, FEEDBACK_CODES, MAX_CODES, MAX_NODES, MAX_SUM, MAX_VARIABLES
from terngrad.ops import library
from terngrad.parts import Parts

CODES = {**MAX_CODES, **FEEDBACK_CODES}  # largest code of each codec
MAX_PLANES = 18
GROUP = 32  # values in a word, as in planes.py, which needs TensorFlow


def gradients(given: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Checks float32 arrays of any shape."""
    if hasattr(given, "dtype"):  # its rows would pass for variables
        raise ValueError("gradients is an array; must be a list of float32 arrays")
    return [_floats(values, f"gradients[{i}]") for i, values in enumerate(given)]


def vector(values: ArrayLike, count: int, name: str) -> NDArray[np.float32]:
    """Checks float32 [count] without negative values; NaN passes."""
    array = np.asarray(values, np.float32)
    if array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape}; must have {(count,)}")
    for i in np.flatnonzero(array < 0):
        raise ValueError(f"{name}[{i}] is {array[i]}; must not be negative")
    return array


def parts_of(shapes: Iterable[Sequence[int]], scale_by: str) -> list[Parts]:
    """Checks what the values that share a scale have in common; returns the shapes' parts."""
    if not isinstance(scale_by, str) or not parts.is_known(scale_by):
        raise ValueError(f"scale_by is {scale_by!r}; must be {parts.ALLOWED}")
    return [parts.parts_of(shape, scale_by) for shape in shapes]


def scales_cover(
    scales: NDArray[np.float32], bounds: NDArray[np.float32], largest: NDArray[np.float32]
) -> None:
    """Checks that no scale is below its part's largest magnitude after clipping.

    A part with NaN needs an infinite scale, so that its means are not finite either.
    """
    clipped = np.where(np.isnan(largest), np.inf, np.minimum(largest, bounds))
    too_small = (scales < clipped) | (np.isnan(scales) & np.isinf(clipped))
    for i in np.flatnonzero(too_small):
        what = "the largest magnitude of its values after clipping"
        raise ValueError(f"scales[{i}] is {scales[i]}; must be {clipped[i]} or more, {what}")


def encoding(
    arrays: Sequence[NDArray[np.float32]],
    *,
    seed: int,
    step: int,
    node: int,
    variables: Sequence[int] | None,
    firsts: Sequence[int] | None,
    codec: str,
    draws: str,
) -> tuple[list[int], list[int], library.NodeKey]:
    """Checks what decides the draws of arrays; see `terngrad.numpy.encode`.

    Returns:
      The variable of each array, its first value's index there, and the key of the draws.
    """
    count = len(arrays)
    variables = range(count) if variables is None else variables
    own = _integers(variables, count, MAX_VARIABLES, "variables")
    first = _integers([0] * count if firsts is None else firsts, count, 1 << 63, "firsts")
    integer(seed, 1 << 64, "seed")
    integer(step, 1 << 63, "step")
    integer(node, MAX_NODES, "node")
    _name(codec, CODES, "codec")
    _name(draws, DRAWS, "draws")
    _values_are_distinct(arrays, own, first)
    key = library.NodeKey(int(seed), int(step) & 0xFFFFFFFF, int(node), draws == "antithetic")
    return own, first, key


def decoding(
    shapes: Sequence[Sequence[int]], nodes: int, *, codec: str, scale_by: str
) -> tuple[list[tuple[int, ...]], list[Parts], int]:
    """Checks what decides the form of means; see `terngrad.numpy.decode`.

    Returns:
      The shapes, the parts of a variable of each, and the number of nodes.
    """
    _name(codec, CODES, "codec")
    nodes = integer(nodes, MAX_SUM // CODES[codec] + 1, "nodes", low=1)
    checked = [_shape(shape, f"shapes[{i}]") for i, shape in enumerate(shapes)]
    return checked, parts_of(checked, scale_by), nodes


def integer(value: int, end: int, name: str, low: int = 0) -> int:
    """Checks an integer in [low, end)."""
    if not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} is {value!r}; must be an integer")
    if not low <= value < end:
        raise ValueError(f"{name} is {value}; must be {low} to {end - 1}")
    return int(value)


def planes(words: NDArray[np.uint32], name: str) -> NDArray[np.uint32]:
    """Checks the planes of codes or sums: uint32 [G, 2 to MAX_PLANES]."""
    array = np.asarray(words)
    if array.dtype != np.uint32 or array.ndim != 2 or not 2 <= array.shape[1] <= MAX_PLANES:
        what = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"{name} is {what}; must be uint32 [G, 2 to {MAX_PLANES}]")
    if exceed(array, limit := largest_in(array.shape[1])):
        raise ValueError(f"{name} has a value beyond {limit}; codes and their sums have none")
    return np.ascontiguousarray(array)


def planes_suffice(planes: int, arrays: int) -> None:
    """Checks that sums of some buckets of at least one node each have enough planes."""
    if planes < (least := plane_count(arrays)):
        nodes = "1 node" if arrays == 1 else f"{arrays} nodes"
        raise ValueError(f"planes is {planes}; must be {least} or more for {nodes}")


def planes_fit(found: tuple[int, int], rows: int, nodes: int, largest: int) -> None:
    """Checks the shape of sums over nodes, of magnitudes up to `largest`."""
    if found[0] != rows:
        raise ValueError(f"words has {found[0]} rows; must have {rows} for these shapes")
    if found[1] < (least := plane_count(largest)):
        raise ValueError(f"words has {found[1]} planes; sums of {nodes} nodes have {least}")


def plane_count(largest: int) -> int:
    """Returns what `planes.plane_count` does; that module needs TensorFlow."""
    return (2 * largest).bit_length()


def group_count(values: int) -> int:
    """Returns the number of groups of 32 values, and so of words in each plane of a bucket."""
    return -(-values // GROUP)


def largest_in(count: int) -> int:
    """Returns the largest magnitude of a sum in `count` planes, which is its number of nodes."""
    return min((1 << (count - 1)) - 1, MAX_NODES)


def exceed(words: NDArray[np.uint32], limit: int) -> bool:
    """Returns whether a value is beyond [-limit, limit].

    Args:
      words: planes uint32 [G, k].
      limit: 0 or more.
    """
    *lower, negative = words.T
    if limit >> len(lower):
        return False
    more, equal = np.zeros_like(negative), ~np.zeros_like(negative)
    for j in reversed(range(len(lower))):
        bits = lower[j] ^ negative  # of |value|, or where it is negative of |value| - 1
        if limit >> j & 1:
            equal &= bits
        else:
            more |= equal & bits
            equal &= ~bits
    return bool(np.any(more | (equal & negative)))


def _integers(values: Sequence[int], count: int, end: int, name: str) -> list[int]:
    """Checks as many integers in [0, end) as there are gradients."""
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries; must have {count}, as gradients has")
    return [integer(value, end, name) for value in values]


def _name(given: str, allowed: Iterable[str], argument: str) -> None:
    """Checks that a name is one of those allowed."""
    names = list(allowed)
    if given not in names:
        raise ValueError(f"{argument} is {given!r}; must be one of {', '.join(names)}")


def _values_are_distinct(
    arrays: Sequence[NDArray[np.float32]], variables: Sequence[int], firsts: Sequence[int]
) -> None:
    """Checks that no two arrays are the same values of a variable, which get the same draws."""
    spans = sorted(
        (variable, first, first + values.size, i)
        for i, (values, variable, first) in enumerate(zip(arrays, variables, firsts, strict=True))
        if values.size
    )
    for (variable, _, end, i), (other, first, _, j) in itertools.pairwise(spans):
        if variable == other and first < end:
            both = " and ".join(f"gradients[{k}]" for k in sorted((i, j)))
            raise ValueError(
                f"{both} both have value {first} of variable {variable}; allowed is one"
            )


def _shape(given: Sequence[int], name: str) -> tuple[int, ...]:
    """Checks a shape."""
    if not isinstance(given, Iterable):
        raise ValueError(f"{name} is {given!r}; must be a tuple of integers")
    return tuple(integer(size, 1 << 63, name) for size in given)


def _floats(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise ValueError(f"{name} is {array.dtype}; must be float32")
    return np.ascontiguousarray(array)
