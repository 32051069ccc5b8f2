"""How many bits do codes take on the wire, and how long does packing take?

Trains LeNet on MNIST, and cifar10_alexnet if the images of CIFAR-10 are given. At some steps four
nodes compute gradients. They are clipped and coded with several numbers of levels, and the codes of
one node and the sums of four are packed. Independent normal and Laplace values are packed beside
them. The entropy is that of the integers of a bucket, each for itself.

python -m benchmarks.packing_benchmark --cifar10_files=/tmp/cifar10/download
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import keras
import numpy as np
import tensorflow as tf

from benchmarks import report
from inception.flags.table import TEXT, at_least, flag, number
from slim.datasets import cifar10, mnist
from slim.nets.nets_factory import build_net
from terngrad.ops.packing import Packing
from terngrad.planes import pack_integers, padded, plane_count
from terngrad.training.runtime import choose_kernels

_MAX_CODES = (1, 2, 3, 7, 127)
_NODES = 4
_IMAGES = 32  # of a node and step
_RATE = 4e-4
_CHUNK_BYTES = 1 << 16  # what the mesh packs at a time
_SMALLEST = 500  # values of a coded variable
_SAMPLE = Path(mnist.__file__).parent / "mnist_sample"

Gradients = Sequence[Sequence[np.ndarray]]  # of each node and variable


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.Options):
    mnist_files: str = flag("Data", TEXT, str(_SAMPLE), "folder of MNIST's published files")
    cifar10_files: str = flag(
        "Data", TEXT, "", "folder of CIFAR-10's archive; not set = without CIFAR-10"
    )
    clip_factor: float = flag("Training", number(), 2.5, "standard deviations to clip to")
    steps: tuple[int, ...] = flag(
        "Training", report.counts(low=0), (0, 20, 300), "steps to look at"
    )
    samples: int = flag("Data", at_least(1 << 15), 1 << 20, "normal and Laplace values", "values")
    rounds: int = flag("Runtime", at_least(1), 5, "timings of a chunk, the shortest counts")


def main(options: _Options) -> None:
    """Measures each source of gradients."""
    packing = choose_kernels().kernels.packing
    rows = []
    for source, gradients in _sources(options):
        for max_code in _MAX_CODES:
            for nodes in (1, _NODES):
                codes = _sum_of_codes(gradients[:nodes], max_code, options.clip_factor)
                measured = _measure(codes, max_code * nodes, packing, options.rounds)
                rows.append(
                    {"gradients": source, "levels": 2 * max_code + 1, "nodes": nodes} | measured
                )
    report.print_table([_cells(row) for row in rows], f"clipped to {options.clip_factor} sigma")
    report.conclude(options, {"rows": rows})


def _cells(row: dict[str, object]) -> dict[str, str]:
    return {k: f"{v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items()}


def _sources(options: _Options) -> Iterator[tuple[str, Gradients]]:
    random = np.random.default_rng(0)
    for draw in (random.normal, random.laplace):
        yield draw.__name__, [[draw(size=options.samples)] for _ in range(_NODES)]
    digits = mnist.load(options.mnist_files)["train"]
    yield from _training("lenet", *digits, options.steps)
    if options.cifar10_files:
        pictures = cifar10.load(options.cifar10_files)["train"]
        yield from _training("cifar10_alexnet", *pictures, options.steps)


def _training(
    net: str, images: np.ndarray, labels: np.ndarray, steps: Sequence[int]
) -> Iterator[tuple[str, Gradients]]:
    """Yields the gradients of some steps, with their names."""
    model, random = build_net(net, num_classes=10), np.random.default_rng(0)
    size, optimizer = model.inputs[0].shape[1], keras.optimizers.Adam(_RATE)
    first = [(length - size) // 2 for length in images.shape[1:3]]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @functools.partial(tf.function, autograph=False)
    def compute(pictures: tf.Tensor, classes: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = loss(classes, model(pictures, training=True))
        return tape.gradient(value, model.trainable_variables)

    def gradients() -> list[tf.Tensor]:
        chosen = random.integers(0, len(images), _IMAGES)
        cut = images[chosen, first[0] : first[0] + size, first[1] : first[1] + size]
        return compute(tf.constant(cut / 128.0 - 1, tf.float32), tf.constant(labels[chosen]))

    for step in range(max(steps) + 1):
        nodes = [gradients() for _ in range(_NODES)]
        if step in steps:
            yield f"{net}, step {step}", [[g.numpy().reshape(-1) for g in node] for node in nodes]
        optimizer.apply_gradients(zip(nodes[0], model.trainable_variables, strict=True))


def _sum_of_codes(gradients: Gradients, max_code: int, clip_factor: float) -> np.ndarray:
    """Returns the sum of the nodes' codes of all variables, rounded without bias: int64 [M]."""
    random, sums = np.random.default_rng(0), []
    for parts in zip(*gradients, strict=True):
        if parts[0].size < _SMALLEST:
            continue
        bounds = [clip_factor * part.std() for part in parts]
        clipped = [np.clip(part, -b, b) for part, b in zip(parts, bounds, strict=True)]
        scale = max(np.abs(part).max() for part in clipped) or 1.0
        ideal = [part.astype(np.float64) * (max_code / scale) for part in clipped]
        sums.append(sum(np.floor(part + random.random(part.size)) for part in ideal))
    return np.concatenate(sums[::-1]).astype(np.int64)  # buckets begin with the last variables


def _measure(codes: np.ndarray, largest: int, packing: Packing, rounds: int) -> dict[str, float]:
    planes = plane_count(largest)
    words = pack_integers(tf.constant(codes, tf.float32), planes).numpy()
    chunk = _CHUNK_BYTES // (4 * planes) // 16 * 16
    parts = [words[i : i + chunk].reshape(-1).view(np.uint8) for i in range(0, len(words), chunk)]
    packed, found = [], [np.empty_like(part) for part in parts]
    seconds = np.full((2, len(parts)), np.inf)  # of packing and unpacking each chunk
    for _ in range(rounds):
        packed.clear()
        for i, (part, target) in enumerate(zip(parts, found, strict=True)):
            start = perf_counter()
            packed.append(packing.pack(part.data, largest))
            between = perf_counter()
            packing.unpack(packed[-1], largest, target)
            passed = between - start, perf_counter() - between
            seconds[:, i] = np.minimum(seconds[:, i], passed)
    values = padded(codes.size)
    shares = np.unique(codes, return_counts=True)[1] / codes.size
    return {
        "planes": planes,
        "entropy": float(-(shares * np.log2(shares)).sum()),
        "bits": 8 * sum(each.nbytes for each in packed) / values,
        "pack GB/s": 4e-9 * values / seconds[0].sum(),
        "unpack GB/s": 4e-9 * values / seconds[1].sum(),
    }


if __name__ == "__main__":
    report.run(main, _Options)
