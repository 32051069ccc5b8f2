"""Does memory depend on the size of the data set, and how soon does a resumed training go on?

Each figure comes from a process of its own. The large data set has four times as many shards as the
small one, of equal size.

python -m benchmarks.streaming_benchmark --json=figures.json
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Sequence

import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import report, streaming
from benchmarks.streaming import Reading
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag

_SMALLER = 4  # the large data set is so many times the small one


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    shards: int = flag("Data", at_least(_SMALLER), 200, "shards of the large data set", "files")
    images_per_shard: int = flag("Data", at_least(1), 100, "records in a shard", "images")
    shuffle_pool: int = flag("Data", at_least(1), 1024, "size of the shuffle pool", "images")
    batches: int = flag("Runtime", at_least(1), 600, "batches of 32 that each process reads")
    rounds: int = flag("Runtime", at_least(1), 3, "processes for each case")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


def main(values: FlagValues) -> None:
    """Writes both data sets and reads them in processes that take turns."""
    options = table.read(_Options, values)
    with tempfile.TemporaryDirectory() as parent:
        sizes = {"small": options.shards // _SMALLER, "large": options.shards}
        folders = {name: os.path.join(parent, name) for name in sizes}
        for name, shards in sizes.items():
            streaming.write_shards(folders[name], shards, options.images_per_shard)
        cases = {
            "small, from the start": (folders["small"], 0.0),
            "large, from the start": (folders["large"], 0.0),
            "large, from the middle": (folders["large"], 0.5),
        }
        readings: dict[str, list[Reading]] = {case: [] for case in cases}
        for _ in range(options.rounds):
            for case, (folder, start) in cases.items():
                readings[case].append(_read_elsewhere(folder, start, options))
    medians = {case: _median(found) for case, found in readings.items()}
    _print(medians)
    found = {case: [reading._asdict() for reading in readings[case]] for case in cases}
    settings = dataclasses.asdict(options)
    report.conclude(report.environment() | settings, {"readings": found}, options.json)


def _read_elsewhere(folder: str, start: float, options: _Options) -> Reading:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
        arguments = (folder, start, options.shuffle_pool, options.batches)
        return process.submit(streaming.read, *arguments).result()


def _median(readings: Sequence[Reading]) -> Reading:
    return Reading(*map(statistics.median, zip(*readings, strict=True)))


def _print(medians: dict[str, Reading]) -> None:
    shown = rich.table.Table("medians", box=rich.box.MARKDOWN)
    for heading in ("images", "batches skipped", "s to the first", "images/s", "MB before", "peak"):
        shown.add_column(heading, justify="right")
    for case, found in medians.items():
        shown.add_row(
            case,
            f"{found.images:.0f}",
            f"{found.start_step:.0f}",
            f"{found.first_batch_secs:.2f}",
            f"{found.images_per_sec:.0f}",
            f"{found.before_mb:.0f}",
            f"{found.peak_mb:.0f}",
        )
    rich.console.Console(width=100).print(shown)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
