"""Checks of the kernels for GPUs with random values, against the kernels for CPUs."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.backends import Backend, launcher
from terngrad import numpy as arrays
from terngrad.gpu import bindings
from terngrad.layout import DRAWS, FEEDBACK_CODES, MAX_CODES
from terngrad.ops import library

CODES = {**MAX_CODES, **FEEDBACK_CODES}
SCALE_BY = ("variable", "channel", "block:128")
_NODES = 3
# Of variables: with and without whole words, groups of draws, pieces and rows; also without values.
SHAPES = (
    *((), (0,), (1,), (33,), (129, 7), (3, 3, 16, 24), (5000, 1), (70_001,), (513, 64)),
    *((33, 4099), (20, 8192), (3, 3)),
)
_EDGES = (0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1e-20, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan)


class Finding(NamedTuple):
    """The result of the check of a law.

    Attributes:
      law: the law, in words.
      values: number of values that were compared.
      wrong: number of those that differ.
    """

    law: str
    values: int
    wrong: int


def check(backend: Backend, seed: int) -> Iterator[Finding]:
    """Checks all laws with values that depend on a seed."""
    random = np.random.default_rng(seed)
    for dtype in backend.dtypes:
        for scale_by in SCALE_BY:
            yield from _same_as_cpu(backend, random, dtype, scale_by)
    yield _part_of_a_variable(backend, random)
    yield _exact_sum(backend, random)
    yield _unbiased(backend, random)
    yield from _memory(backend, random)
    for rule in library.RULES:
        yield _update(backend, random, rule)


def print_findings(findings: Iterable[Finding]) -> None:
    """Prints a line for each law, up to its colon, and one for each finding that is wrong."""
    by_law: dict[str, list[Finding]] = {}
    for finding in findings:
        by_law.setdefault(finding.law.partition(":")[0], []).append(finding)
        if finding.wrong:
            print(f"- WRONG: {finding.law}: {finding.wrong} of {finding.values} values")
    for law, of_law in by_law.items():
        values, wrong = (sum(each[i] for each in of_law) for i in (1, 2))
        print(f"- {law}: {len(of_law)} cases, {values:,} values, {wrong} wrong")


def values_of(
    random: np.random.Generator, shapes: Iterable[Sequence[int]], has_edges: bool
) -> list[NDArray[np.float32]]:
    """Returns random values, if asked for with some that are extreme, zero or not finite."""
    found = []
    for shape in shapes:
        values = np.asarray(random.standard_normal(shape), np.float32)
        if has_edges and values.size:
            places = random.integers(0, values.size, 3)
            values.reshape(-1)[places] = random.choice(_EDGES, 3)
        found.append(values)
    return found


def wrong_in(one: NDArray, other: NDArray) -> int:
    """Returns the number of values whose bits differ; all NaNs are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return max(one.size, other.size, 1)
    kind = np.dtype(f"u{one.itemsize}")
    differ = one.view(kind) != other.view(kind)
    if one.dtype.kind == "f":
        differ &= ~(np.isnan(one) & np.isnan(other))
    return int(np.count_nonzero(differ))


def _same_as_cpu(
    backend: Backend, random: np.random.Generator, dtype: str, scale_by: str
) -> Iterator[Finding]:
    for has_edges in (False, True):
        hosts, given = _gradients(backend, random, dtype, has_edges)
        found, expected = _stats(backend, given, hosts, scale_by)
        edges = ", edges" if has_edges else ""
        what = f"{dtype}, {scale_by}{edges}"
        counts = [(theirs.size, wrong_in(ours, theirs)) for ours, theirs in found]
        yield Finding(f"statistics as on the CPU: {what}", *map(sum, zip(*counts, strict=True)))
        for codec, draws in itertools.product(CODES, DRAWS):
            finding = _codes(backend, random, hosts, given, expected, codec, draws, scale_by)
            yield Finding(f"codes, sums, means as on the CPU: {what}, {codec}, {draws}", *finding)


def _gradients(
    backend: Backend, random: np.random.Generator, dtype: str, has_edges: bool
) -> tuple[list[NDArray], list[Any]]:
    """Returns gradients as float32 in the host's memory, and on the GPU."""
    hosts, given = [], []
    for values in values_of(random, SHAPES, has_edges):
        if dtype == "bfloat16":
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)
            hosts.append((bits.astype(np.uint32) << 16).view(np.float32))
            given.append(backend.put(bits, dtype))
        else:
            with np.errstate(over="ignore"):
                narrow = values.astype(dtype)
            hosts.append(narrow.astype(np.float32))
            given.append(backend.put(narrow))
    return hosts, given


def _stats(
    backend: Backend, given: Sequence[Any], hosts: Sequence[NDArray], scale_by: str
) -> tuple[list[tuple[NDArray, NDArray]], arrays.Stats]:
    ours, theirs = arrays.stats(given, scale_by=scale_by), arrays.stats(hosts, scale_by=scale_by)
    return list(zip(map(backend.get, ours), theirs, strict=True)), theirs


def _codes(
    backend: Backend,
    random: np.random.Generator,
    hosts: Sequence[NDArray],
    given: Sequence[Any],
    found: arrays.Stats,
    codec: str,
    draws: str,
    scale_by: str,
) -> tuple[int, int]:
    """Returns the number of values and words that were compared, and of those that differ."""
    bounds = random.choice(np.float32([np.inf, 2.5, 0.5]), found.max_abs.size)
    with np.errstate(over="ignore"):
        factors = random.choice(np.float32([1, 1.5]), bounds.size)
        largest = np.minimum(found.max_abs, bounds)
        scales = np.where(np.isnan(largest), np.float32(np.inf), largest) * factors
    how = {
        "seed": int(random.integers(0, 1 << 63)),
        "step": int(random.integers(0, 1 << 40)),
        "firsts": [int(random.choice([0, 0, 1, 77, 128, 2**33 + 5])) for _ in hosts],
        "variables": random.choice(1 << 16, len(hosts), replace=False).tolist(),
        "codec": codec,
        "draws": draws,
        "scale_by": scale_by,
    }
    compared = wrong = 0
    codes, ours = [], []
    first = int(random.integers(0, (1 << 16) - _NODES))
    for node in range(first, first + _NODES):
        codes.append(arrays.encode(hosts, scales, bounds=bounds, node=node, **how))
        on_gpu = backend.put(scales), backend.put(bounds)
        ours.append(arrays.encode(given, on_gpu[0], bounds=on_gpu[1], node=node, **how))
        compared += codes[-1].size
        wrong += wrong_in(backend.get(ours[-1]), codes[-1])
    planes = (2 * _NODES * CODES[codec]).bit_length()
    total, our_total = arrays.sum(codes, planes), arrays.sum(ours, planes)
    wrong += wrong_in(backend.get(our_total), total)
    means = _NODES, [each.shape for each in hosts]
    by = {"codec": codec, "scale_by": scale_by}
    for one, other in zip(
        arrays.decode(our_total, on_gpu[0], *means, **by),
        arrays.decode(total, scales, *means, **by),
        strict=True,
    ):
        compared += other.size
        wrong += wrong_in(backend.get(one), other)
    return compared + total.size, wrong


def _part_of_a_variable(backend: Backend, random: np.random.Generator) -> Finding:
    values = random.standard_normal(100_003).astype(np.float32)
    cut = int(random.integers(1, values.size))
    how = {"seed": int(random.integers(0, 1 << 63)), "step": 3, "node": 2}
    scale = float(np.abs(values).max())
    whole = arrays.encode([backend.put(values)], [scale], variables=[9], **how)
    both = [backend.put(part) for part in np.split(values, [cut])]
    parts = {"variables": [9, 9], "firsts": [0, cut]}
    wrong = sum(
        wrong_in(backend.get(words), backend.get(whole))
        for words in [arrays.encode(both, [scale] * 2, **parts, **how) for _ in range(2)]
    )
    return Finding("codes depend on values, scale and key alone", 2 * values.size, wrong)


def _exact_sum(backend: Backend, random: np.random.Generator) -> Finding:
    rows, counts = 10_000, (2, 3, 8, 17, 2)
    given = [random.integers(0, 1 << 32, (rows, planes), np.uint32) for planes in counts]
    given = [_without_the_least(words) for words in given]
    total = backend.get(arrays.sum([backend.put(words) for words in given], 18))
    wrong = np.count_nonzero(_integers(total) != sum(map(_integers, given)))
    return Finding("sums are those of the integers", rows * 32, int(wrong))


def _without_the_least(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns planes without the smallest integer, whose negative does not fit."""
    lower = np.bitwise_or.reduce(words[:, :-1], axis=1)
    words[:, -1] &= lower
    return words


def _integers(words: NDArray[np.uint32]) -> NDArray[np.int64]:
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint32) & 1).astype(np.int64)
    weights = 1 << np.arange(words.shape[1], dtype=np.int64)
    weights[-1] *= -1
    return np.einsum("gjb,j->gb", bits, weights).reshape(-1)


def _unbiased(backend: Backend, random: np.random.Generator) -> Finding:
    """Sums of many encodings lie within six standard deviations of their mean."""
    nodes, size = 1024, 4096
    values = np.clip(random.standard_normal(size), -2, 2).astype(np.float32)
    given, how = [backend.put(values)], {"seed": int(random.integers(0, 1 << 63)), "step": 1}
    scale = np.float32(2)
    codes = [arrays.encode(given, [float(scale)], node=node, **how) for node in range(nodes)]
    sums = _integers(backend.get(arrays.sum(codes, (2 * nodes).bit_length())))
    chance = np.abs(values) / scale
    deviation = np.sqrt(np.maximum(nodes * chance * (1 - chance), 1))
    wrong = np.abs(sums - nodes * values / scale) > 6 * deviation
    return Finding("the mean of many codes is the value", size, int(np.count_nonzero(wrong)))


def _bucket(random: np.random.Generator) -> list[NDArray[np.float32]]:
    return [random.standard_normal(n).astype(np.float32) for n in (70_001, 33, 4096, 100_000)]


def _padded(numbers: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """Returns each number as an array that the CPU's kernels read as the unit of one part."""
    return [np.full(1 + library.PADDING, number, np.float32) for number in numbers]


def _cpu(name: str, *arguments: object) -> None:
    native = library.load_arrays()
    path = library.choose_path(native).encode()
    if not getattr(native, f"terngrad_{name}")(path, *arguments):
        raise AssertionError(f"{name}: the arguments are wrong")


def _memory(backend: Backend, random: np.random.Generator) -> Iterator[Finding]:
    """Sent + kept = gradient + memory."""
    for codec, max_code in FEEDBACK_CODES.items():
        values, memory = _bucket(random), _bucket(random)
        halves = [each.astype(np.float16) for each in values]
        for given in (values, halves):
            corrected, wrong = _corrected(backend, given, memory)
            size = sum(each.size for each in given)
            yield Finding(f"gradient + memory: {given[0].dtype}, {codec}", size, wrong)
        scales = arrays.stats(corrected).max_abs
        words = arrays.encode(corrected, scales, seed=1, step=1, node=0, codec=codec)
        yield Finding(
            f"the memory keeps the rounding errors, as on the CPU: {codec}",
            sum(each.size for each in values),
            _wrong_residuals(backend, corrected, words, scales, max_code),
        )


def _corrected(
    backend: Backend, given: Sequence[NDArray], memory: Sequence[NDArray]
) -> tuple[list[NDArray], int]:
    on_gpu = [
        (backend.put(each), backend.put(kept)) for each, kept in zip(given, memory, strict=True)
    ]
    items = (bindings.Corrected * len(on_gpu))(
        *(
            bindings.Corrected(
                values=backend.address(each),
                memory=backend.address(kept),
                sums=backend.address(kept),
                size=host.size,
                type=bindings.VALUE_TYPES[host.dtype.name],
            )
            for (each, kept), host in zip(on_gpu, given, strict=True)
        )
    )
    rows = -(-sum(each.size for each in given) // 32)
    launcher(backend, "correct", items, items, len(items), rows)()
    found = [backend.get(kept) for _, kept in on_gpu]
    expected = [a.astype(np.float32) + b for a, b in zip(given, memory, strict=True)]
    return expected, sum(map(wrong_in, found, expected))


def _wrong_residuals(
    backend: Backend, values: Sequence[NDArray], words: NDArray, scales: NDArray, max_code: int
) -> int:
    share = np.float32(1.0 / max_code)
    rests, units = [np.empty_like(each) for each in values], _padded(scales * share)
    kept = (library.Kept * len(values))(
        *(
            (each.ctypes.data, rest.ctypes.data, each.size, (1, 1, 0), unit.ctypes.data)
            for each, rest, unit in zip(values, rests, units, strict=True)
        )
    )
    planes = words.shape[1]
    codes = library.Planes(words.ctypes.data, planes)
    _cpu("subtract", ctypes.byref(codes), kept, len(kept), len(words))
    on_gpu, scale = [backend.put(each) for each in values], backend.put(scales)
    items = (bindings.Kept * len(values))(
        *(
            bindings.Kept(
                values=backend.address(each),
                residuals=backend.address(each),
                size=host.size,
                parts=(1, 1, 0),
                scales=backend.address(scale) + 4 * i,
            )
            for i, (each, host) in enumerate(zip(on_gpu, values, strict=True))
        )
    )
    given = backend.put(words)
    codes, rule = library.Planes(backend.address(given), planes), bindings.UnitRule(share, 1)
    arguments = ctypes.byref(codes), items, len(items), ctypes.byref(rule), len(words)
    launcher(backend, "subtract", items, *arguments)()
    return sum(map(wrong_in, map(backend.get, on_gpu), rests))


def _update(backend: Backend, random: np.random.Generator, rule: str) -> Finding:
    nodes, gradients = 2, _bucket(random)
    scales = arrays.stats(gradients).max_abs
    codes = [arrays.encode(gradients, scales, seed=2, step=1, node=n) for n in range(nodes)]
    words = arrays.sum(codes, 3)
    trained = [np.abs(np.stack([each] * 4)) for each in gradients]  # weights, slots, averages
    on_gpu = [[backend.put(row) for row in rows] for rows in trained]
    units = _padded(scales / np.float32(nodes))
    update = library.Update(library.RULES.index(rule), 0.1, 0.9, 0.1, 0.01, 1e-7, 0.25)
    theirs = (library.Trained * len(trained))(
        *(
            library.Trained(
                weights=rows[0].ctypes.data,
                slots=(rows[1].ctypes.data, rows[2].ctypes.data),
                averages=rows[3].ctypes.data if i != 1 else None,
                size=rows[0].size,
                parts=(1, 1, 0),
                units=unit.ctypes.data,
            )
            for i, (rows, unit) in enumerate(zip(trained, units, strict=True))
        )
    )
    sums = library.Planes(words.ctypes.data, 3)
    _cpu("update", ctypes.byref(sums), theirs, len(theirs), ctypes.byref(update), len(words))
    scale, given = backend.put(scales), backend.put(words)
    ours = (bindings.Trained * len(trained))(
        *(
            bindings.Trained(
                weights=backend.address(rows[0]),
                slots=(backend.address(rows[1]), backend.address(rows[2])),
                averages=backend.address(rows[3]) if i != 1 else None,
                size=trained[i][0].size,
                parts=(1, 1, 0),
                scales=backend.address(scale) + 4 * i,
            )
            for i, rows in enumerate(on_gpu)
        )
    )
    sums, unit_rule = library.Planes(backend.address(given), 3), bindings.UnitRule(1, nodes)
    arguments = ctypes.byref(sums), ours, len(ours), ctypes.byref(update), ctypes.byref(unit_rule)
    launcher(backend, "update", ours, *arguments, len(words))()
    wrong = sum(
        wrong_in(backend.get(row), expected)
        for rows, expected_rows in zip(on_gpu, trained, strict=True)
        for row, expected in zip(rows, expected_rows, strict=True)
    )
    return Finding(f"updates as on the CPU: {rule}", sum(each.size for each in gradients), wrong)
