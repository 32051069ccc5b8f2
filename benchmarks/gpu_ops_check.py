"""Do TensorFlow's operations on a GPU give the bits of those on CPUs, and how fast are they?

It needs a TensorFlow that sees a GPU, and NVRTC. Gradients of random values become codes, sums and
means in graphs on both devices, and update weights there. Then these operations are timed with
AlexNet's gradients, native ones and the reference. The exit status is 1 if a bit differs.

python -m benchmarks.gpu_ops_check --json=figures.json
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.gpu import laws
from benchmarks.gpu.laws import CODES, SCALE_BY, SHAPES, Finding, wrong_in
from benchmarks.gpu.options import environment, parser, write_figures
from benchmarks.gpu.timings import NETS
from terngrad.draws import DrawKey
from terngrad.gpu.ops import GpuKernels
from terngrad.layout import DRAWS, FEEDBACK_CODES
from terngrad.ops import library
from terngrad.ops.gradient_kernels import Averages, GradientKernels, Sums, Update
from terngrad.ops.library import UnavailableError
from terngrad.ops.native import NativeKernels
from terngrad.ops.reference import ReferenceKernels
from terngrad.parts import parts_of

_NODES = 3  # in a sum


class Target(NamedTuple):
    """Kernels, and the device where they compute."""

    kernels: GradientKernels
    device: str


class _Way(NamedTuple):
    """How gradients become codes."""

    codec: str
    draws: str
    scale_by: str


_PLAIN = _Way("ternary", DRAWS[0], "variable")


def main(arguments: Sequence[str] | None = None, targets: Sequence[Target] = ()) -> None:
    """Checks and measures; exits with a line if there is no GPU, or bits differ.

    Args:
      arguments: of the command line.
      targets: the expected results, the checked ones, and a timed baseline; by default the CPU, the
        GPU, and the reference operations on the GPU.
    """
    options = parser("gpu_ops_check", __doc__).parse_args(arguments)
    try:
        right, checked, beside = targets or _targets()
    except UnavailableError as error:
        sys.exit(f"gpu_ops_check: {error}")
    conditions = environment(_card()) | {
        "kernels": checked.kernels.title,
        "TensorFlow": tf.__version__,
        "seed": options.seed,
    }
    for name, value in conditions.items():
        print(f"- {name}: {value}")
    findings = list(_check(right, checked, np.random.default_rng(options.seed)))
    laws.print_findings(findings)
    times = {}
    if options.rounds:
        for target in (checked, beside):
            times[target.kernels.title] = _milliseconds(target, options.rounds)
            print(f"- {target.kernels.title}: {times[target.kernels.title]}")
    if options.json:
        content = {
            "environment": conditions,
            "laws": [finding._asdict() for finding in findings],
            "milliseconds": times,
        }
        write_figures("gpu_ops_check", options.json, content)
    if wrong := sum(finding.wrong for finding in findings):
        sys.exit(f"gpu_ops_check: {wrong} values are not what they must be")


def _card() -> str:
    for gpu in tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_device_details(gpu).get("device_name", "unknown")
    return "none"


def _targets() -> list[Target]:
    gpu = "/device:GPU:0"
    return [
        Target(NativeKernels(), "/device:CPU:0"),
        Target(GpuKernels(), gpu),
        Target(ReferenceKernels(on_gpu=True), gpu),
    ]


def _check(right: Target, checked: Target, random: np.random.Generator) -> Iterator[Finding]:
    tf.get_logger().setLevel("ERROR")  # each case is traced anew, which TensorFlow warns of
    for way in itertools.starmap(_Way, itertools.product(CODES, DRAWS, SCALE_BY)):
        gradients, memory = (laws.values_of(random, SHAPES, edges) for edges in (True, False))
        seed, step = int(random.integers(0, 1 << 63)), int(random.integers(0, 1 << 31))
        found = [
            _outputs(target, way, gradients, memory, seed, step) for target in (right, checked)
        ]
        yield _finding(f"statistics, codes, sums, means as on the CPU: {', '.join(way)}", found)
    for rule in library.RULES:
        gradients = laws.values_of(random, SHAPES, False)
        found = [_updated(target, rule, gradients) for target in (right, checked)]
        yield _finding(f"updates as on the CPU: {rule}", found)


def _finding(law: str, found: Sequence[Sequence[tf.Tensor]]) -> Finding:
    pairs = [(one.numpy(), other.numpy()) for one, other in zip(*found, strict=True)]
    wrong = sum(itertools.starmap(wrong_in, pairs))
    return Finding(law, sum(one.size for one, _ in pairs), wrong)


def _outputs(
    target: Target,
    way: _Way,
    gradients: Sequence[NDArray],
    memory: Sequence[NDArray],
    seed: int,
    step: int,
) -> list[tf.Tensor]:
    """Returns all that operations compute from gradients, in one graph."""
    kernels, shapes = target.kernels, [each.shape for each in gradients]
    parts, largest = [parts_of(shape, way.scale_by) for shape in shapes], CODES[way.codec]

    @tf.function(autograph=False)
    def run(
        values: list[tf.Tensor], kept: list[tf.Tensor], seed: tf.Tensor, nodes: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.device(target.device):
            # Computed on the device just before: operations must keep their order there.
            values = [_reversed(each) for each in values]
            if way.codec in FEEDBACK_CODES:
                values, stats = kernels.correct(values, kept, parts)
            else:
                stats = kernels.stats(values, parts)
            bounds = 0.75 * stats.max_abs
            scales = tf.minimum(stats.max_abs, bounds)
            codes = [
                _encode(kernels, values, bounds, scales, DrawKey(seed, step, node), way)
                for node in map(tf.constant, range(_NODES))
            ]
            total = kernels.sum(codes, (2 * _NODES * largest).bit_length())
            units = scales * np.float32(1 / largest)
            means = kernels.decode(total, units, nodes, shapes, parts)
            rests = []
            if way.codec in FEEDBACK_CODES:
                rests = kernels.subtract(values, codes[0], units, parts)
        return [*values, *stats, *codes, total, *means, *rests]

    given, kept = ([tf.constant(each) for each in arrays] for arrays in (gradients, memory))
    step = tf.constant(step)
    return run(given, kept, tf.constant(seed, tf.uint64), tf.constant(_NODES))


def _encode(
    kernels: GradientKernels,
    values: Sequence[tf.Tensor],
    bounds: tf.Tensor,
    scales: tf.Tensor,
    key: DrawKey,
    way: _Way = _PLAIN,
) -> tf.Tensor:
    key = dataclasses.replace(key, antithetic=way.draws == "antithetic")
    parts = [parts_of(each.shape, way.scale_by) for each in values]
    return kernels.encode(values, range(len(values)), bounds, scales, key, way.codec, parts)


def _reversed(values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.reverse(tf.reshape(values, [-1]), [0]), values.shape)


def _updated(target: Target, rule: Any, gradients: Sequence[NDArray]) -> list[tf.Tensor]:
    """Returns weights, slots and averages after two updates with the same sums."""
    kernels = target.kernels
    with tf.device(target.device):
        weights, first, second, shadows = (
            [tf.Variable(np.abs(each)) for each in gradients] for _ in range(4)
        )
    slots = [first, second] if rule in ("adam", "rmsprop") else [first]

    @tf.function(autograph=False)
    def run(values: list[tf.Tensor], seed: tf.Tensor, nodes: tf.Tensor) -> None:
        with tf.device(target.device):
            scales = kernels.stats(values).max_abs
            codes = [
                _encode(kernels, values, scales, scales, DrawKey(seed, step, node))
                for node in map(tf.constant, range(_NODES))
            ]
            words = kernels.sum(codes, (2 * _NODES).bit_length())
            sums = Sums(tuple(range(len(values))), words, scales, nodes)
            update = Update(rule, tf.constant(0.1), 0.9, 0.1, 0.01, 1e-7)
            for _ in range(2):
                kernels.apply_update(
                    sums, weights, slots, update, Averages(shadows, tf.constant(0.25))
                )

    given, step = [tf.constant(each) for each in gradients], tf.constant(5)
    run(given, tf.constant(9, tf.uint64), tf.constant(_NODES))
    return [variable.read_value() for each in (weights, *slots, shadows) for variable in each]


def _milliseconds(target: Target, rounds: int) -> dict[str, float]:
    """Returns how long each operation takes with AlexNet's gradients: medians."""
    kernels, shapes = target.kernels, NETS["AlexNet"]
    with tf.device(target.device):
        gradients = [tf.random.stateless_normal(shape, [1, 2]) for shape in shapes]
        weights = [tf.Variable(each) for each in gradients]
        slots = [[tf.Variable(each) for each in gradients]]
    key = DrawKey(tf.constant(1, tf.uint64), tf.constant(3), tf.constant(0))
    scales, nodes = kernels.stats(gradients).max_abs, tf.constant(_NODES)

    def encode() -> tf.Tensor:
        return _encode(kernels, gradients, scales, scales, key)

    words = kernels.sum([encode() for _ in range(_NODES)], 3)
    tasks: dict[str, Callable[[], Any]] = {
        "stats": lambda: kernels.stats(gradients),
        "encode": encode,
        "sum": lambda: kernels.sum([words] * _NODES, 5),
        "decode": lambda: kernels.decode(words, scales, nodes, shapes),
    }
    if kernels.updates:
        sums = Sums(tuple(range(len(shapes))), words, scales, nodes)
        update = Update("momentum", tf.constant(0.0), 0.9)
        tasks["update, momentum"] = lambda: kernels.apply_update(sums, weights, slots, update)
    found = {}
    for name, task in tasks.items():
        run = _in_graph(task, target.device)
        run()
        times = []
        for _ in range(rounds):
            before = time.perf_counter()
            run()
            times.append(1000 * (time.perf_counter() - before))
        found[name] = round(statistics.median(times), 3)
    return found


def _in_graph(task: Callable[[], Any], device: str) -> Callable[[], Any]:
    """Returns a function that also waits until the device is ready."""

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        with tf.device(device):
            outputs = [each for each in tf.nest.flatten(task()) if each is not None]
            with tf.control_dependencies(outputs or None):
                firsts = [tf.reshape(each, [-1])[:1] for each in outputs]
                return [tf.identity(each) for each in firsts]

    def waits() -> None:
        for each in run():
            each.numpy()
        tf.test.experimental.sync_devices()

    return waits


if __name__ == "__main__":
    main()
