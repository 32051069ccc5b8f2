"""Does reading data slow training down?

Compares a float step on real records with the same step on synthetic input; and for photographs the
whole input pipeline with bare tf.io.decode_jpeg and resizing, on the same records and threads.

python -m benchmarks.input_benchmark --mnist_dir=DIR --cifar10_dir=DIR --json=figures.json
python -m benchmarks.input_benchmark --jpeg_dir=FOLDER_WITH_JPEG_FILES --json=figures.json
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping

import numpy as np
from absl.flags import FlagValues

from benchmarks import photographs, report, timing
from benchmarks.timing import Comparison, Side
from inception import app
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, at_least, flag
from inception.training import train
from inception.training.problem import resolve
from slim.datasets import dataset_factory

_PROBLEMS = {"mnist": ("lenet", 64), "cifar10": ("cifar10_alexnet", 128)}
# Batches before a slice. Those that were read during a pause would make it look faster, and what
# the other sides still read ahead would make it look slower.
_READ_AHEAD = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(timing.Options):
    mnist_dir: str = flag("Data", TEXT, "", "folder of MNIST's records; not set = skip MNIST")
    cifar10_dir: str = flag("Data", TEXT, "", "folder of CIFAR-10's records; not set = skip")
    jpeg_dir: str = flag("Data", TEXT, "", "folder of JPEG files, in any depth; not set = skip")
    images: int = flag(
        "Data", at_least(1), 1024, "photographs to read; the files are repeated", "images"
    )
    num_preprocess_threads: int = flag(
        "Data",
        at_least(1),
        os.cpu_count() or 1,
        "threads that decode photographs, on every side",
        "threads",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mnist_dir or self.cifar10_dir or self.jpeg_dir):
            raise table.refuse("mnist_dir", "", "this, --cifar10_dir or --jpeg_dir must be set")


def main(values: FlagValues) -> None:
    """Measures each data set."""
    options = table.read(_Options, values)
    timing.configure(options)
    comparisons = []
    for dataset, folder in (("mnist", options.mnist_dir), ("cifar10", options.cifar10_dir)):
        if folder:
            comparisons.append(_compare(dataset, folder, options))
            report.print_comparison(comparisons[-1])
    if options.jpeg_dir:
        comparisons += _compare_photographs(options)
    report.finish(comparisons, options)


def _compare(dataset: str, folder: str, options: _Options) -> Comparison:
    net, batch_size = _PROBLEMS[dataset]
    config = TrainConfig(dataset_name=dataset, net=net, batch_size=batch_size)
    inputs = {"synthetic": None, "records": dataset_factory.get_dataset(dataset, "train", folder)}
    sides = {
        name: timing.suite_side(config, train.training_batches(config, resolve(config), source, 0))
        for name, source in inputs.items()
    }
    times = timing.alternate(sides, options, _READ_AHEAD)
    ratios = {
        f"{unit}/step, records to synthetic": timing.ratio(values, "records", "synthetic")
        for unit, values in (("ms", times.wall), ("CPU ms", times.cpu))
    }
    return Comparison(f"{net} on {dataset}, batch {batch_size}", times, ratios)


def _compare_photographs(options: _Options) -> list[Comparison]:
    with tempfile.TemporaryDirectory() as folder:
        source = photographs.write(options.jpeg_dir, folder, options.images)
        threads = options.num_preprocess_threads
        compare = functools.partial(_compare_speeds, options=options)
        return [
            compare("pipelines", photographs.pipelines(source, threads), "bare JPEG"),
            compare("decoding", photographs.decoders(source, threads), "whole, INTEGER_FAST"),
        ]


def _compare_speeds(
    what: str, sides: Mapping[str, Side], base: str, options: _Options
) -> Comparison:
    """Compares images per second, by wall time and by CPU time, with those of a base."""
    times = timing.alternate(sides, options, _READ_AHEAD)
    ratios = {
        f"images/{unit}, {name} to {base}": 1 / timing.ratio(values, name, base)
        for unit, values in (("s", times.wall), ("CPU s", times.cpu))
        for name in sides
        if name != base
    }
    for name, values in times.wall.items():
        speed = photographs.images_per_sec(float(np.median(values)))
        print(f"- {what}, {name}: {speed:.0f} images/s")
    found = Comparison(f"photographs, {what}", times, ratios)
    report.print_comparison(found)
    return found


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
