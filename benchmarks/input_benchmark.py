"""Does reading hold training up?

A float step on real records beside the same step on synthetic input.

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
_READ_AHEAD = 10  # batches that wait when a pause ends; they would flatter a slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(timing.Options):
    mnist_dir: str = flag("Data", TEXT, "", "folder of MNIST's records; left out if not set")
    cifar10_dir: str = flag("Data", TEXT, "", "folder of CIFAR-10's records; left out if not set")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mnist_dir and not self.cifar10_dir:
            raise table.refuse("mnist_dir", "", "this or --cifar10_dir must be set")


def main(values: FlagValues) -> None:
    """Measures data set after data set."""
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
