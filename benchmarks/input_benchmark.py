"""Does reading data slow training down?

Compares a float step on real records with the same step on synthetic input.

python -m benchmarks.input_benchmark --mnist_dir=DIR --cifar10_dir=DIR --json=figures.json
"""

import dataclasses
import functools

from absl.flags import FlagValues

from benchmarks import report, timing
from benchmarks.timing import Comparison
from inception import app
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, flag
from inception.training import train
from inception.training.problem import resolve
from slim.datasets import dataset_factory

_PROBLEMS = {"mnist": ("lenet", 64), "cifar10": ("cifar10_alexnet", 128)}
_READ_AHEAD = 10  # batches that were read during a pause; they would make a slice look faster


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(timing.Options):
    mnist_dir: str = flag("Data", TEXT, "", "folder of MNIST's records; not set = skip MNIST")
    cifar10_dir: str = flag("Data", TEXT, "", "folder of CIFAR-10's records; not set = skip")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mnist_dir and not self.cifar10_dir:
            raise table.refuse("mnist_dir", "", "this or --cifar10_dir must be set")


def main(values: FlagValues) -> None:
    """Measures each data set."""
    options = table.read(_Options, values)
    timing.configure(options)
    comparisons = []
    for dataset, folder in (("mnist", options.mnist_dir), ("cifar10", options.cifar10_dir)):
        if folder:
            comparisons.append(_compare(dataset, folder, options))
            report.print_comparison(comparisons[-1])
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


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
