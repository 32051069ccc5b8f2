"""What does the codec cost, compared with copying the gradient once?

Times statistics, encoding, decoding, the sum of four nodes' codes, and the optimizers' updates on
clipped Gaussian values: with the native kernels of each instruction set, with the reference ops,
and np.copyto of the array.

python -m benchmarks.codec_benchmark --json=figures.json --png=figures.png
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
import tensorflow as tf
from absl.flags import FlagValues

from benchmarks import report
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag
from inception.results import pictures
from slim.nets import nets_factory
from terngrad.codecs.factory import make_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.kernels import Kernels, Sums
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels
from terngrad.planes import WORD_BYTES, padded
from terngrad.training import runtime
from terngrad.training.averages import MovingAverages
from terngrad.training.optimizers import make_optimizer
from terngrad.training.step import exchange_gradients

_SIZES = (8_400_000, 61_000_000)  # a large layer; AlexNet
_NODES = 4  # nodes in a sum of codes
_CODEC = ("stats", "encode", "decode", "sum4")
_OPTIMIZERS = ("momentum", "adam", "rmsprop")
_BOUND = 2.5
_WHOLE_NET = "lenet_slim"

Task = Callable[[], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    rounds: int = flag("Runtime", at_least(1), 11, "timings of each task", "rounds")
    num_threads: int = flag(
        "Runtime", at_least(0), 1, "threads that a task may use; 0 = all cores", "threads"
    )
    max_values: int = flag("Data", at_least(32), _SIZES[-1], "skip larger sizes", "values")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")


def main(values: FlagValues) -> None:
    """Measures each size, then a whole codec."""
    options = table.read(_Options, values)
    runtime.configure(
        intra_threads=options.num_threads,
        inter_threads=0,
        deterministic=True,
        log_placement=False,
    )
    implementations = _implementations()
    sizes = [n for n in _SIZES if n <= options.max_values] or [options.max_values]
    nanoseconds = {n: _measure(n, implementations, options.rounds) for n in sizes}
    for n, found in nanoseconds.items():
        _print(n, found)
    codec = {
        f"codec_ms_{_WHOLE_NET}_{nodes}_nodes": _whole_codec(nodes, options.rounds)
        for nodes in (1, _NODES)
    }
    for name, value in codec.items():
        print(f"- {name}: {value:.2f}")
    circumstances = report.environment() | {"threads": options.num_threads}
    ratios = {str(n): _ratios(found) for n, found in nanoseconds.items()}
    details = {str(n): found for n, found in nanoseconds.items()}
    report.conclude(circumstances, {**ratios, **codec, "ns_per_value": details}, options.json)
    if options.png:
        _draw(nanoseconds, options.png)


def _implementations() -> dict[str, Kernels]:
    """Returns the native kernels, fastest first, then the reference."""
    found: dict[str, Kernels] = {}
    for path in ("avx512", "avx2", "portable"):
        try:
            found[path] = NativeKernels(path)
        except ValueError as error:
            print(f"Skipped: {error}")
    return {**found, "reference": ReferenceKernels()}


def _measure(
    n: int, implementations: Mapping[str, Kernels], rounds: int
) -> dict[str, dict[str, float]]:
    """Returns median ns per value by task and implementation; the task "copy" has only one."""
    normal = np.random.default_rng(1).standard_normal(n, dtype=np.float32)
    values = np.clip(normal, -_BOUND, _BOUND, out=normal)
    target = np.empty_like(values)
    tasks: dict[tuple[str, str], Task] = {("copy", "numpy"): lambda: np.copyto(target, values)}
    for name, kernels in implementations.items():
        made = _tasks(kernels, tf.constant(values))
        tasks |= {(task, name): run for task, run in made.items()}
    found: dict[str, dict[str, float]] = {}
    times = _alternate(tasks, rounds)
    for optimizer in _OPTIMIZERS:  # one by one: slots need much memory
        updates = {
            (task, name): run
            for name, kernels in implementations.items()
            for task, run in _updates(kernels, n, optimizer).items()
        }
        times |= _alternate(updates, rounds)
    for (task, name), seconds in times.items():
        found.setdefault(task, {})[name] = 1e9 * float(np.median(seconds)) / n
    return found


def _tasks(kernels: Kernels, values: tf.Tensor) -> dict[str, Task]:
    bound = tf.constant([_BOUND])
    nodes = tf.Variable(_NODES)
    shapes = [tuple(values.shape)]
    keys = [_key(node) for node in range(_NODES)]
    codes = [kernels.encode([values], [0], bound, bound, key) for key in keys]

    def decode() -> list[tf.Tensor]:
        return kernels.decode(codes[0], bound, nodes.read_value(), shapes)

    tasks = {
        "stats": lambda: kernels.stats([values]),
        "encode": lambda: kernels.encode([values], [0], bound, bound, keys[0]),
        "decode": decode,
        "sum4": lambda: kernels.sum(codes, (2 * _NODES).bit_length()),
    }
    if isinstance(kernels, NativeKernels):  # one op: a function would only add its call
        return tasks
    return {name: tf.function(task, autograph=False) for name, task in tasks.items()}


def _updates(kernels: Kernels, size: int, optimizer: str) -> dict[str, Task]:
    """Returns an optimizer's update with sums of codes, in several passes and in one.

    Both also with moving averages of the weights.
    """
    draws = np.random.default_rng(1)
    words = padded(size) // (8 * WORD_BYTES)
    codes = tf.constant(draws.integers(0, 1 << 32, (words, 2), np.uint32))
    units, nodes = tf.constant([0.01]), tf.Variable(_NODES)
    variables = [tf.Variable(tf.zeros([size]))]
    chosen = make_optimizer(optimizer, variables, 0.9, kernels)
    averages = MovingAverages(variables, 0.999)
    rate, step = tf.constant(0.01), tf.constant(3, tf.int64)

    def in_passes(*, averaged: bool) -> None:
        means = kernels.decode(codes, units, nodes.read_value(), [(size,)])
        chosen.apply(means, rate, step)
        if averaged:
            averages.update(step)

    def in_one_pass(*, averaged: bool) -> None:
        part = averages.part(step, [0]) if averaged else None
        chosen.apply_sums(Sums((0,), codes, units, nodes.read_value()), rate, step, part)

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


def _whole_codec(nodes: int, rounds: int) -> float:
    """Returns median ms from gradients to means with native kernels: all that a step adds."""
    model = nets_factory.build_net(_WHOLE_NET, num_classes=10, image_size=28)
    variables = model.trainable_variables
    layout = make_layout(
        [nets_factory.variable_name(v) for v in variables],
        [v.shape for v in variables],
        Policy(grad_bits=1, clip_factor=_BOUND),
    )
    kernels = NativeKernels()
    codecs, exchange = make_codecs(layout, kernels), LocalExchange(nodes, kernels)
    keys = [_key(node) for node in range(nodes)]
    gradients = [
        [tf.random.stateless_normal(v.shape, [node, i]) for i, v in enumerate(variables)]
        for node in range(nodes)
    ]

    @tf.function(autograph=False)
    def run(gradients: list[list[tf.Tensor]]) -> list[tf.Tensor]:
        return exchange_gradients(gradients, codecs, exchange, keys, ["/CPU:0"] * nodes).means

    times = _alternate({("codec", ""): lambda: run(gradients)}, 3 * rounds)
    return 1e3 * float(np.median(times["codec", ""]))


def _ratios(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns durations relative to a copy, and speed-ups over the reference."""
    copy = found["copy"]["numpy"]
    ratios = {}
    for name, suffix in _suffixes(found).items():
        for task in _CODEC:
            ratios[f"{task}_over_copy{suffix}"] = found[task][name] / copy
        for optimizer in _OPTIMIZERS:
            apart, fused = (found[f"{how} {optimizer}"][name] for how in ("decode,", "fused"))
            ratios[f"fused_{optimizer}{suffix}"] = fused / apart
        for task in ("encode", "decode"):
            ratios[f"{task}_over_reference{suffix}"] = found[task]["reference"] / found[task][name]
    return ratios


def _suffixes(found: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Returns the suffixes of the figures' names, by implementation; the fastest has none."""
    native = [name for name in found["encode"] if name != "reference"]
    return {name: f"_{name}" if i else "" for i, name in enumerate(native)}


def _print(n: int, found: Mapping[str, Mapping[str, float]]) -> None:
    copy = found["copy"]["numpy"]
    title = f"{n:,} values: ns per value (times np.copyto, {copy:.3f} ns)"
    names = list(found["encode"])
    table = rich.table.Table("task", title=title, box=rich.box.MARKDOWN)
    for name in names:
        table.add_column(name, justify="right")
    for task in (task for task in found if task != "copy"):
        times = [found[task].get(name, math.nan) for name in names]
        cells = [f"{time:.3f} ({time / copy:.2f})" for time in times]
        table.add_row(task, *cells)
    console = rich.console.Console(width=100)
    console.print(table)
    for name, value in _ratios(found).items():
        console.print(f"- {name}: {value:.2f}")


def _draw(nanoseconds: Mapping[int, Mapping[str, Mapping[str, float]]], path: str) -> None:
    figure = matplotlib.figure.Figure(figsize=(6 * len(nanoseconds), 4), layout="constrained")
    panels = figure.subplots(1, len(nanoseconds), squeeze=False, sharey=True)[0]
    for axes, (n, found) in zip(panels, nanoseconds.items(), strict=True):
        tasks = [task for task in found if task != "copy"]
        names = list(found["encode"])
        for i, name in enumerate(names):
            places = np.arange(len(tasks)) + (i - (len(names) - 1) / 2) * 0.2
            bars = axes.bar(
                places, [found[task].get(name, math.nan) for task in tasks], 0.2, label=name
            )
            axes.bar_label(bars, fmt="%.2g", fontsize=7)
        axes.axhline(found["copy"]["numpy"], color="black", linestyle="--", label="np.copyto")
        axes.set(title=f"{n / 1e6:g}M values", yscale="log", ylabel="ns per value")
        axes.set_xticks(range(len(tasks)), tasks)
    panels[0].legend(fontsize=8)
    pictures.save(figure, path)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
