"""What does the codec cost, compared with copying the gradient once?

Times statistics, encoding by each encoder, the steps of error feedback, decoding, the sum of
four nodes' codes, and the optimizers' updates on clipped Gaussian values: with the native kernels
of each instruction set, with the reference ops, and np.copyto of the array. With
--scale_by=channel the array is a matrix with a scale for each of its 4096 columns.

python -m benchmarks.codec_benchmark --json=figures.json --png=figures.png
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from benchmarks import report
from inception.flags.table import Kind, at_least, flag
from terngrad import parts
from terngrad.draws import DrawKey
from terngrad.layout import FEEDBACK_CODES
from terngrad.ops.gradient_kernels import GradientKernels, Sums
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels
from terngrad.parts import Parts, parts_of
from terngrad.planes import WORD_BYTES, padded
from terngrad.ternary import ENCODERS
from terngrad.training import runtime
from terngrad.training.averages import MovingAverages
from terngrad.training.optimizers import make_optimizer

_SIZES = (8_400_000, 61_000_000)  # a large layer; AlexNet
_NODES = 4  # nodes in a sum of codes
_OPTIMIZERS = ("momentum", "adam", "rmsprop")
_BOUND = 2.5
_CHANNELS = 4096  # of the array, as of AlexNet's large layers

_SCALE_BY = Kind(str, parts.ALLOWED, parts.is_known)

Task = Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.PictureOptions):
    rounds: int = flag("Runtime", at_least(1), 11, "timings of each task", "rounds")
    num_threads: int = flag("Runtime", at_least(0), 1, "threads of a task; 0 = all cores")
    scale_by: str = flag("TernGrad", _SCALE_BY, "variable", "values that share a scale")
    max_values: int = flag("Data", at_least(32), _SIZES[-1], "skip larger sizes", "values")


def main(options: _Options) -> None:
    """Measures each size."""
    runtime.configure(
        intra_threads=options.num_threads,
        inter_threads=0,
        deterministic=True,
    )
    implementations = _implementations()
    sizes = [n for n in _SIZES if n <= options.max_values] or [options.max_values]
    measure = lambda n: _measure(n, implementations, options.rounds, options.scale_by)
    nanoseconds = {n: measure(n) for n in sizes}
    for n, found in nanoseconds.items():
        _print(n, found)
    report.conclude(options, {"ns_per_value": nanoseconds}, threads=options.num_threads)
    _draw(nanoseconds, options.png)


def _implementations() -> dict[str, GradientKernels]:
    """Returns the native kernels, fastest first, then the reference."""
    found: dict[str, GradientKernels] = {}
    for path in ("avx512", "avx2", "portable"):
        try:
            found[path] = NativeKernels(path)
        except ValueError as error:
            print(f"Skipped: {error}")
    return {**found, "reference": ReferenceKernels()}


def _measure(
    n: int, implementations: Mapping[str, GradientKernels], rounds: int, scale_by: str
) -> dict[str, dict[str, float]]:
    """Returns median ns per value by task and implementation; the task "copy" has only one."""
    normal = np.random.default_rng(1).standard_normal(n, dtype=np.float32)
    values = np.clip(normal, -_BOUND, _BOUND, out=normal)
    target = np.empty_like(values)
    own = parts_of(_shape_of(n, scale_by), scale_by)
    tasks: dict[tuple[str, str], Task] = {("copy", "numpy"): lambda: np.copyto(target, values)}
    for name, kernels in implementations.items():
        made = _tasks(kernels, tf.constant(values), own)
        tasks |= {(task, name): run for task, run in made.items()}
    found: dict[str, dict[str, float]] = {}
    times = _alternate(tasks, rounds)
    for optimizer in _OPTIMIZERS:  # one by one: slots need much memory
        updates = {
            (task, name): run
            for name, kernels in implementations.items()
            for task, run in _updates(kernels, n, optimizer, own).items()
        }
        times |= _alternate(updates, rounds)
    for (task, name), seconds in times.items():
        found.setdefault(task, {})[name] = 1e9 * float(np.median(seconds)) / n
    return found


def _shape_of(n: int, scale_by: str) -> tuple[int, ...]:
    """Returns the shape by which n values are divided into parts."""
    return (-(-n // _CHANNELS), _CHANNELS) if scale_by == "channel" else (n,)


def _tasks(kernels: GradientKernels, values: tf.Tensor, own: Parts) -> dict[str, Task]:
    bound = tf.fill([own.count], _BOUND)
    nodes = tf.Variable(_NODES)
    shapes = [tuple(values.shape)]
    keys = [_key(node) for node in range(_NODES)]
    encode = lambda key, encoder="ternary": kernels.encode(
        [values], [0], bound, bound, key, encoder, [own]
    )
    codes = [encode(key) for key in keys]

    def decode() -> list[tf.Tensor]:
        return kernels.decode(codes[0], bound, nodes.read_value(), shapes, [own])

    tasks = {
        "stats": lambda: kernels.stats([values], [own]),
        "encode": lambda: encode(keys[0]),
        "decode": decode,
        "sum4": lambda: kernels.sum(codes, (2 * _NODES).bit_length()),
    }
    for name in [each for each in ENCODERS if each != "ternary"]:
        tasks[f"encode {name}"] = functools.partial(encode, keys[0], name)
    tasks |= _memory_tasks(kernels, values, own, keys[0])
    paired = dataclasses.replace(keys[0], antithetic=True)
    tasks["encode antithetic"] = lambda: encode(paired)
    if isinstance(kernels, NativeKernels):  # one op: a function would only add its call
        return tasks
    return {name: tf.function(task, autograph=False) for name, task in tasks.items()}


def _memory_tasks(
    kernels: GradientKernels, values: tf.Tensor, own: Parts, key: DrawKey
) -> dict[str, Task]:
    """Returns the steps of each codec with feedback on a new gradient, and what makes that one.

    A step's gradient is a buffer of its own: corrected and then kept values take its place. What
    the codec costs is the difference to making it.
    """
    scales, one = tf.ones([own.count]), tf.Variable(1.0)
    memory = tf.Variable(0.1 * values, trainable=False)

    def gradient() -> tf.Tensor:
        return values * one.read_value()

    def correct() -> tf.Tensor:
        return kernels.correct([gradient()], [memory.read_value()], [own])[0][0]

    tasks: dict[str, Task] = {"gradient": gradient, "gradient, correct": correct}
    for name, max_code in FEEDBACK_CODES.items():

        def step(name: str = name, units: tf.Tensor = scales / max_code) -> tf.Tensor:
            corrected = [correct()]
            codes = kernels.encode(corrected, [0], scales, scales, key, name, [own])
            memory.assign(kernels.subtract(corrected, codes, units, [own])[0])
            return codes

        tasks[f"gradient, {name}"] = step
    return {name: tf.function(task, autograph=False) for name, task in tasks.items()}


def _updates(kernels: GradientKernels, size: int, optimizer: str, own: Parts) -> dict[str, Task]:
    """Returns an optimizer's update with sums of codes, in several passes and in one.

    Both also with moving averages of the weights.
    """
    draws = np.random.default_rng(1)
    words = padded(size) // (8 * WORD_BYTES)
    codes = tf.constant(draws.integers(0, 1 << 32, (words, 2), np.uint32))
    units, nodes = tf.fill([own.count], 0.01), tf.Variable(_NODES)
    variables = [tf.Variable(tf.zeros([size]))]
    chosen = make_optimizer(optimizer, variables, 0.9, kernels)
    averages = MovingAverages(variables, 0.999)
    rate, step = tf.constant(0.01), tf.constant(3, tf.int64)

    def in_passes(*, averaged: bool) -> None:
        means = kernels.decode(codes, units, nodes.read_value(), [(size,)], [own])
        chosen.apply(means, rate, step)
        if averaged:
            averages.update(step)

    def in_one_pass(*, averaged: bool) -> None:
        part = averages.part(step, [0]) if averaged else None
        sums = Sums((0,), codes, units, nodes.read_value(), (own,))
        chosen.apply_sums(sums, rate, step, part)

    tasks: dict[str, Task] = {}
    for averaged in (False, True):
        what = f"{optimizer}, averages" if averaged else optimizer
        tasks[f"decode, {what}"] = functools.partial(in_passes, averaged=averaged)
        if kernels.updates:
            tasks[f"fused {what}"] = functools.partial(in_one_pass, averaged=averaged)
    return {name: tf.function(task, autograph=False) for name, task in tasks.items()}


def _key(node: int) -> DrawKey:
    """Returns a key that is not constant: draws of constants would be made while compiling."""
    step = tf.Variable(3, dtype=tf.int64)
    return DrawKey(tf.constant(7, tf.uint64), step, tf.constant(node))


def _alternate(tasks: Mapping[tuple[str, str], Task], rounds: int) -> dict:
    """Returns the seconds of each task in each round.

    Runs each task once without timing it first, so that it finds its own data in the caches.
    """
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            task()
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def _print(n: int, found: Mapping[str, Mapping[str, float]]) -> None:
    copy = found["copy"]["numpy"]
    rows = [
        {"task": task} | {name: f"{ns:.3f} ({ns / copy:.2f})" for name, ns in times.items()}
        for task, times in found.items()
        if task != "copy"
    ]
    report.print_table(rows, f"{n:,} values: ns per value (times np.copyto, {copy:.3f} ns)")


def _draw(nanoseconds: Mapping[int, Mapping[str, Mapping[str, float]]], path: str) -> None:
    panels = {
        f"{n:,} values": {
            f"{task}, {name}": [ns] for task, times in found.items() for name, ns in times.items()
        }
        for n, found in nanoseconds.items()
    }
    report.draw_bars(path, panels, "ns per value")


if __name__ == "__main__":
    report.run(main, _Options)
