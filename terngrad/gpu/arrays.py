"""The functions of `terngrad.numpy` for arrays on a GPU.

Each call starts kernels on the current stream of the arrays' package and waits for none. So it
checks shapes and types, but no values in the device's memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from terngrad.gpu import bindings
from terngrad.gpu.device import device
from terngrad.gpu.frameworks import ArrayView, Framework, framework_of
from terngrad.ops import array_checks as check
from terngrad.ops import library
from terngrad.parts import Parts


def are_on_gpu(*arguments: Any) -> bool:
    """Returns whether an argument is an array on a GPU, or a list with one."""
    return any(
        framework_of(argument) is not None
        or (isinstance(argument, list | tuple) and any(map(framework_of, argument)))
        for argument in arguments
    )


class _Call:
    """The arrays of a call: all are of one package and on one device."""

    def __init__(self, **groups: Any):
        """Takes arguments by their names: arrays, or lists of them."""
        found = ((name, one) for name, one in _named(groups) if framework_of(one))
        self._first, array = next(found)
        self.framework: Framework = framework_of(array)
        self.device = self.framework.device_of(array)
        self.stream = self.framework.stream(self.device)

    def view(self, array: Any, name: str) -> ArrayView:
        """Returns the view of an array of the call."""
        if self.framework.is_here(array, self.device):  # so are nearly all
            return self.framework.view(array)
        framework = framework_of(array)
        if framework is None:
            where = f"a {type(array).__name__} outside of GPUs"
        elif framework.name != self.framework.name:
            where = f"of {framework.name}"
        else:
            where = f"on GPU {framework.device_of(array)}"
        must = f"of {self.framework.name} on GPU {self.device}, as {self._first} is"
        raise ValueError(f"{name} is {where}; all arrays of a call must be {must}")

    def gradients(self, given: Sequence[Any]) -> list[ArrayView]:
        if not isinstance(given, list | tuple):
            raise ValueError("gradients is an array; must be a list of arrays")
        views = [self.view(array, f"gradients[{i}]") for i, array in enumerate(given)]
        for i, view in enumerate(views):
            if view.dtype not in bindings.VALUE_TYPES:
                allowed = ", ".join(bindings.VALUE_TYPES)
                raise ValueError(f"gradients[{i}] is {view.dtype}; must be one of {allowed}")
        return views

    def vector(self, values: Any, count: int, name: str) -> ArrayView:
        """Returns a view of float32 [count], which may be given as a list of numbers."""
        if isinstance(values, list | tuple) and not any(map(framework_of, values)):
            numbers = np.ascontiguousarray(check.vector(values, count, name))
            view = self.empty((count,), "float32")
            upload = numbers.ctypes.data, numbers.nbytes, view.address
            device(self.device).call("upload", *upload, self.stream)
            return view
        view = self.view(values, name)
        if view.dtype != "float32" or view.shape != (count,):
            what = f"{view.dtype} {list(view.shape)}"
            raise ValueError(f"{name} is {what}; must be float32 {[count]}")
        return view

    def planes(self, words: Any, name: str) -> ArrayView:
        """Returns a view of planes; PyTorch's operations know int32 better than uint32."""
        view = self.view(words, name)
        is_integer, is_matrix = view.dtype in ("uint32", "int32"), len(view.shape) == 2
        if not (is_integer and is_matrix and 2 <= view.shape[1] <= check.MAX_PLANES):
            what, limit = f"{view.dtype} {list(view.shape)}", check.MAX_PLANES
            raise ValueError(f"{name} is {what}; must be uint32 or int32 [G, 2 to {limit}]")
        return view

    def empty(self, shape: Sequence[int], dtype: str) -> ArrayView:
        return self.framework.view(self.framework.empty(shape, dtype, self.device))

    def run(self, name: str, table: ctypes.Array, *arguments: object) -> None:
        """Launches kernels with a table, which is one of the arguments, on the call's stream."""
        scratch = self.empty((bindings.scratch_bytes(table),), "uint8")
        device(self.device).call(name, *arguments, scratch.address, self.stream)


def _named(groups: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the single arrays of some arguments with their names."""
    found = []
    for name, group in groups.items():
        if isinstance(group, list | tuple):
            found += [(f"{name}[{i}]", one) for i, one in enumerate(group)]
        else:
            found.append((name, group))
    return found


def stats(gradients: Sequence[Any], scale_by: str) -> tuple[Any, Any, Any]:
    """Returns sums, sums of squares and largest magnitudes; see `terngrad.numpy.stats`."""
    call = _Call(gradients=gradients)
    views = call.gradients(gradients)
    parts = check.parts_of((view.shape for view in views), scale_by)
    items = (bindings.Gradient * len(views))(
        *(
            (view.address, view.size, tuple(own), bindings.VALUE_TYPES[view.dtype])
            for view, own in zip(views, parts, strict=True)
        )
    )
    found = [call.empty((sum(own.count for own in parts),), "float32") for _ in range(3)]
    call.run("stats", items, items, len(items), *(view.address for view in found))
    return tuple(view.owner for view in found)


def encode(
    gradients: Sequence[Any],
    scales: Any,
    *,
    seed: int,
    step: int,
    node: int,
    bounds: Any,
    variables: Sequence[int] | None,
    firsts: Sequence[int] | None,
    codec: str,
    draws: str,
    scale_by: str,
) -> Any:
    """Returns the codes of a bucket; see `terngrad.numpy.encode`."""
    call = _Call(gradients=gradients, scales=scales, bounds=bounds)
    views = call.gradients(gradients)
    parts = check.parts_of((view.shape for view in views), scale_by)
    count, total = len(views), sum(own.count for own in parts)
    scale = call.vector(scales, total, "scales")
    bound = None if bounds is None else call.vector(bounds, total, "bounds")
    index, first, key = check.encoding(
        views,
        seed=seed,
        step=step,
        node=node,
        variables=variables,
        firsts=firsts,
        codec=codec,
        draws=draws,
    )
    sources = (bindings.Source * count)(
        *(
            bindings.Source(
                values=view.address,
                size=view.size,
                first=first[i],
                parts=tuple(parts[i]),
                bounds=None if bound is None else bound.address + offset,
                scales=scale.address + offset,
                variable=index[i],
                type=bindings.VALUE_TYPES[view.dtype],
            )
            for i, (view, offset) in enumerate(zip(views, _offsets(parts), strict=True))
        )
    )
    rows = check.group_count(sum(view.size for view in views))
    words = call.empty((rows, check.plane_count(check.CODES[codec])), "uint32")
    call.run("encode", sources, codec.encode(), sources, count, key, rows, words.address)
    return words.owner


def add(words: Sequence[Any], planes: int) -> Any:
    """Returns the sum of buckets modulo 2^planes; see `terngrad.numpy.sum`."""
    call = _Call(words=list(words))
    views = [call.planes(array, f"words[{i}]") for i, array in enumerate(words)]
    check.integer(planes, check.MAX_PLANES + 1, "planes", low=2)
    rows = views[0].shape[0]
    for i, view in enumerate(views):
        if view.shape[0] != rows:
            raise ValueError(f"words[{i}] has {view.shape[0]} rows; must have {rows}, as words[0]")
    check.planes_suffice(planes, len(views))
    inputs = (library.Planes * len(views))(*((view.address, view.shape[1]) for view in views))
    total = call.empty((rows, planes), "uint32")
    call.run("sum", inputs, inputs, len(inputs), planes, rows, total.address)
    return total.owner


def decode(
    words: Any,
    scales: Any,
    nodes: int,
    shapes: Sequence[Sequence[int]],
    *,
    codec: str,
    scale_by: str,
) -> list[Any]:
    """Returns the means of a bucket's variables; see `terngrad.numpy.decode`."""
    call = _Call(words=words, scales=scales)
    view = call.planes(words, "words")
    shapes, parts, nodes = check.decoding(shapes, nodes, codec=codec, scale_by=scale_by)
    max_code = check.CODES[codec]
    scale = call.vector(scales, sum(own.count for own in parts), "scales")
    rows = check.group_count(sum(math.prod(shape) for shape in shapes))
    check.planes_fit(view.shape, rows, nodes, nodes * max_code)
    means = [call.empty(shape, "float32") for shape in shapes]
    targets = (bindings.Target * len(means))(
        *(
            bindings.Target(
                values=mean.address,
                size=mean.size,
                parts=tuple(own),
                scales=scale.address + offset,
            )
            for mean, own, offset in zip(means, parts, _offsets(parts), strict=True)
        )
    )
    sums = library.Planes(view.address, view.shape[1])
    units = bindings.UnitRule(np.float32(1.0 / max_code), nodes)
    arguments = ctypes.byref(sums), targets, len(targets), ctypes.byref(units), rows
    call.run("decode", targets, *arguments)
    return [mean.owner for mean in means]


def _offsets(parts: Sequence[Parts]) -> list[int]:
    """Returns where the numbers of each variable's parts begin, in bytes."""
    offsets, offset = [], 0
    for own in parts:
        offsets.append(offset)
        offset += 4 * own.count
    return offsets
