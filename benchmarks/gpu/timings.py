"""How long the kernels for GPUs take, beside a copy of the gradients on the GPU."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.backends import Backend, Task, launcher
from terngrad import numpy as arrays
from terngrad.gpu import bindings
from terngrad.layout import FEEDBACK_CODES, MAX_CODES
from terngrad.ops import library

Shapes = Sequence[tuple[int, ...]]

_NODES = 4  # in a sum of codes
_BUSY_BYTES = 1 << 28  # copied before each timing: launches wait in a queue, no cache is warm
_BUSY_COPIES = 4


def _resnet_50() -> Iterator[tuple[int, ...]]:
    """Yields the shapes of the variables (arXiv 1512.03385, table 1): 25.6 million values."""

    def convolution(width: int, inputs: int, outputs: int) -> list[tuple[int, ...]]:
        return [(width, width, inputs, outputs), (outputs,), (outputs,)]

    yield from convolution(7, 3, 64)
    inputs = 64
    for depth, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                yield from convolution(1, inputs, 4 * depth)
            yield from convolution(1, inputs, depth)
            yield from convolution(3, depth, depth)
            yield from convolution(1, depth, 4 * depth)
            inputs = 4 * depth
    yield from ((2048, 1000), (1000,))


# In one column (arXiv 1404.5997): 61.1 million values.
_ALEXNET = (
    *((11, 11, 3, 64), (5, 5, 64, 192), (3, 3, 192, 384), (3, 3, 384, 256), (3, 3, 256, 256)),
    *((6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)),
    *((64,), (192,), (384,), (256,), (256,), (4096,), (4096,), (1000,)),
)
NETS: Mapping[str, Shapes] = {"AlexNet": _ALEXNET, "ResNet-50": tuple(_resnet_50())}


class Timing(NamedTuple):
    """The measured time of a task.

    Attributes:
      net: the net whose gradients are used.
      task: what is done with them, e.g. "encode".
      seconds: median of the rounds.
      octets: bytes that the task must read and write.
    """

    net: str
    task: str
    seconds: float
    octets: int

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.octets / self.seconds if self.seconds else 0.0


def measure(backend: Backend, net: str, shapes: Shapes, rounds: int, seed: int) -> list[Timing]:
    """Returns the times of copying a net's gradients and of each kernel."""
    bucket = _Bucket(backend, shapes, seed)
    found = [
        Timing(net, task, _median(backend, bucket.busy, run, rounds), octets)
        for task, octets, run in bucket.tasks()
    ]
    calls = _host_seconds(backend, bucket.python_calls, rounds)
    return [*found, Timing(net, "host's time for calls of stats and encode", calls, 0)]


def _median(backend: Backend, busy: Task, run: Task, rounds: int) -> float:
    run()
    times = []
    for _ in range(rounds):
        busy()
        start = backend.record()
        run()
        times.append(backend.seconds(start, backend.record()))
    return statistics.median(times)


def _host_seconds(backend: Backend, run: Task, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
        now = backend.record()
        backend.seconds(now, now)  # waits
    return statistics.median(times)


class _Bucket:
    """A net's gradients, and the other arguments of the kernels."""

    def __init__(self, backend: Backend, shapes: Shapes, seed: int):
        self._backend = backend
        random = np.random.default_rng(seed)
        hosts = [1e-2 * random.standard_normal(shape, np.float32) for shape in shapes]
        self._gradients = [backend.put(each) for each in hosts]
        self._halves = {
            dtype: [backend.put(_halved(each, dtype), dtype) for each in hosts]
            for dtype in backend.dtypes[1:]
        }
        self._sizes = [each.size for each in hosts]
        self._size = sum(self._sizes)
        self._rows = -(-self._size // 32)
        self._found = arrays.stats(self._gradients)
        self._scales = self._found.max_abs
        self._targets = [[backend.put(each) for each in hosts] for _ in range(4)]
        self._codes = [self._encoded(node, "ternary") for node in range(_NODES)]
        self._feedback = {codec: self._encoded(0, codec) for codec in FEEDBACK_CODES}
        self._sum_planes = (2 * _NODES).bit_length()
        self._sums = arrays.sum(self._codes, self._sum_planes)
        wide = _BUSY_BYTES // 4
        self._wide = [backend.put(np.zeros(wide, np.float32)) for _ in range(2)]
        one = np.concatenate([each.reshape(-1) for each in hosts])
        self._whole = [backend.put(one) for _ in range(2)]

    def _encoded(self, node: int, codec: str) -> Any:
        return arrays.encode(self._gradients, self._scales, seed=1, step=1, node=node, codec=codec)

    def busy(self) -> None:
        for _ in range(_BUSY_COPIES):
            self._backend.copy(*self._wide)

    def python_calls(self) -> None:
        arrays.encode(
            self._gradients, arrays.stats(self._gradients).max_abs, seed=1, step=1, node=0
        )

    def tasks(self) -> Iterator[tuple[str, int, Task]]:
        """Yields tasks with the bytes that they read and write."""
        n, copy = self._size, self._backend.copy
        yield "copy", 8 * n, lambda: copy(*self._whole)
        for dtype, values in {"float32": self._gradients, **self._halves}.items():
            octets = (4 if dtype == "float32" else 2) * n
            suffix = "" if dtype == "float32" else f", {dtype}"
            yield f"stats{suffix}", octets, self._stats(values, dtype)
            yield f"encode{suffix}", octets + n // 4, self._encode(values, dtype, "ternary")
        yield (
            "encode, antithetic",
            4 * n + n // 4,
            self._encode(self._gradients, "float32", "ternary", antithetic=True),
        )
        for codec, max_code in {**MAX_CODES, **FEEDBACK_CODES}.items():
            if codec != "ternary":
                octets = 4 * n + n * _planes(max_code) // 8
                run = self._encode(self._gradients, "float32", codec)
                yield f"encode, {codec}", octets, run
        yield f"sum of {_NODES}", n * (2 * _NODES + self._sum_planes) // 8, self._sum()
        sums = n * self._sum_planes // 8
        yield "decode", sums + 4 * n, self._decode()
        yield "correct", 12 * n, self._correct()
        for codec, max_code in FEEDBACK_CODES.items():
            octets = 8 * n + n * _planes(max_code) // 8
            yield f"subtract, {codec}", octets, self._subtract(codec, max_code)
        for rule in library.RULES:
            arrays_of_rule = 2 * (3 if rule in ("adam", "rmsprop") else 2)
            yield f"update, {rule}", sums + 4 * n * arrays_of_rule, self._update(rule, False)
        yield "update, adam, averages", sums + 32 * n, self._update("adam", True)
        for direction, run in self._backend.host_copies(self._whole[0]).items():
            yield f"gradients {direction}", 4 * n, run
        for direction, run in self._backend.host_copies(self._codes[0]).items():
            yield f"codes {direction}", n // 4, run
        for name, run in self._backend.encoder_alternatives(self._whole[0]).items():
            yield name, 5 * n, run

    def _launcher(self, name: str, table: ctypes.Array, *arguments: object) -> Task:
        return launcher(self._backend, name, table, *arguments)

    def _address(self, array: Any) -> int:
        return self._backend.address(array)

    def _stats(self, values: Sequence[Any], dtype: str) -> Task:
        items = (bindings.Gradient * len(values))(
            *(
                (self._address(each), size, (1, 1, 0), bindings.VALUE_TYPES[dtype])
                for each, size in zip(values, self._sizes, strict=True)
            )
        )
        return self._launcher("stats", items, items, len(items), *map(self._address, self._found))

    def _encode(
        self, values: Sequence[Any], dtype: str, codec: str, antithetic: bool = False
    ) -> Task:
        items = (bindings.Source * len(values))(
            *(
                bindings.Source(
                    values=self._address(each),
                    size=size,
                    parts=(1, 1, 0),
                    scales=self._address(self._scales) + 4 * i,
                    variable=i,
                    type=bindings.VALUE_TYPES[dtype],
                )
                for i, (each, size) in enumerate(zip(values, self._sizes, strict=True))
            )
        )
        planes = _planes({**MAX_CODES, **FEEDBACK_CODES}[codec])
        words = self._backend.put(np.zeros((self._rows, planes), np.uint32))
        key = library.NodeKey(7, 3, 0, antithetic)
        run = self._launcher(
            "encode",
            items,
            codec.encode(),
            items,
            len(items),
            key,
            self._rows,
            self._address(words),
        )
        return lambda words=words: run()  # the memory lives as long as the task

    def _sum(self) -> Task:
        inputs = (library.Planes * _NODES)(*((self._address(each), 2) for each in self._codes))
        total = self._address(self._sums)
        return self._launcher("sum", inputs, inputs, _NODES, self._sum_planes, self._rows, total)

    def _decode(self) -> Task:
        items = (bindings.Target * len(self._sizes))(
            *(
                bindings.Target(values=self._address(each), **self._item(i))
                for i, each in enumerate(self._targets[0])
            )
        )
        return self._launcher(
            "decode", items, *self._with(self._sums, items), _units(1, _NODES), self._rows
        )

    def _correct(self) -> Task:
        items = (bindings.Corrected * len(self._sizes))(
            *(
                bindings.Corrected(
                    values=self._address(each),
                    memory=self._address(self._targets[0][i]),
                    sums=self._address(self._targets[1][i]),
                    size=self._sizes[i],
                )
                for i, each in enumerate(self._gradients)
            )
        )
        return self._launcher("correct", items, items, len(items), self._rows)

    def _subtract(self, codec: str, max_code: int) -> Task:
        items = (bindings.Kept * len(self._sizes))(
            *(
                bindings.Kept(
                    values=self._address(each),
                    residuals=self._address(self._targets[0][i]),
                    **self._item(i),
                )
                for i, each in enumerate(self._gradients)
            )
        )
        codes = self._with(self._feedback[codec], items)
        return self._launcher(
            "subtract", items, *codes, _units(np.float32(1 / max_code), 1), self._rows
        )

    def _update(self, rule: str, has_averages: bool) -> Task:
        places = [list(map(self._address, each)) for each in self._targets]
        items = (bindings.Trained * len(self._sizes))(
            *(
                bindings.Trained(
                    weights=places[0][i],
                    slots=(places[1][i], places[2][i]),
                    averages=places[3][i] if has_averages else None,
                    **self._item(i),
                )
                for i in range(len(self._sizes))
            )
        )
        update = library.Update(library.RULES.index(rule), 1e-3, 0.9, 0.1, 1e-3, 1e-7, 0.01)
        sums = self._with(self._sums, items)
        return self._launcher(
            "update", items, *sums, ctypes.byref(update), _units(1, _NODES), self._rows
        )

    def _item(self, i: int) -> dict[str, Any]:
        scales = self._address(self._scales) + 4 * i
        return {"size": self._sizes[i], "parts": (1, 1, 0), "scales": scales}

    def _with(self, words: Any, items: ctypes.Array) -> tuple[object, ctypes.Array, int]:
        planes = library.Planes(self._address(words), words.shape[1])
        return ctypes.byref(planes), items, len(items)


def _units(share: float, divisor: float) -> object:
    return ctypes.byref(bindings.UnitRule(share, divisor))


def _planes(max_code: int) -> int:
    return (2 * max_code).bit_length()


def _halved(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)
