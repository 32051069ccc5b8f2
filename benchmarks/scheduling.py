"""How many trials an hour does a sweep finish, and what does each trial cost beside its training?

First the same short trainings as sweeps: one after the other on one core, one after the other on
all cores, and as many at once as there are cores. Then trials of programs that do nothing, on this
machine and, with --hosts and --spark, by ssh and on Spark's executors, against the same programs
started by hand. Runs nothing else meanwhile.

python -m benchmarks.scheduling --data_dir=DIR --json=figures.json
"""

import dataclasses
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import report
from inception import app
from inception.flags import table
from inception.flags.table import NAMES, TEXT, at_least, flag
from inception.sweeping import places, spark
from inception.sweeping.messages import Order, Outcome
from inception.sweeping.places import Place

_NOTHING = ("json.tool", "--help")  # a small program that ends at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of MNIST's record files")
    trials: int = flag("Runtime", at_least(1), 8, "trials of each sweep", "trials")
    steps: int = flag("Runtime", at_least(1), 300, "steps of each training", "steps")
    rounds: int = flag("Runtime", at_least(1), 1, "sweeps of each kind, in turns", "sweeps")
    overhead_trials: int = flag("Runtime", at_least(1), 9, "trials that do nothing, by place")
    hosts: tuple[str, ...] = flag("Distributed", NAMES, (), "a host for the overhead of ssh")
    ssh_config: str = flag("Distributed", TEXT, "", "configuration file of ssh")
    spark: str = flag("Distributed", TEXT, "", "Spark master for the overhead of Spark")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")


def main(values: FlagValues) -> None:
    """Measures both and prints them."""
    options = table.read(_Options, values)
    cores = sorted(os.sched_getaffinity(0))
    kinds = {
        "one after the other, 1 core": (1, cores[:1]),
        f"one after the other, {len(cores)} cores": (1, cores),
        f"{len(cores)} at once": (len(cores), cores),
    }
    secs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, (jobs, own) in kinds.items():
            secs[kind].append(_sweep(options, jobs, own))
    overheads = {name: _overhead(place, options) for name, place in _places(options)}
    _print(options, secs, overheads)
    found = {"sweep_secs": secs, "overhead_secs": overheads}
    report.conclude(report.environment() | dataclasses.asdict(options), found, options.json)


def _sweep(options: _Options, jobs: int, cores: Sequence[int]) -> float:
    """Returns the seconds of a sweep on some cores."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "inception.sweep", "--program=inception.mnist_train"),
            *(f"--random={options.trials}", "--space=initial_learning_rate=0.001..0.1:log"),
            *(f"--jobs={jobs}", f"--sweep_dir={folder}", "--eval_flags=--num_examples=1000"),
            *("--", f"--data_dir={options.data_dir}", f"--max_steps={options.steps}"),
            *("--grad_bits=1", "--clip_factor=2.5", "--save_summaries_secs=0"),
        ]
        begin = time.monotonic()
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            text=True,
            check=True,
        )
        secs = time.monotonic() - begin
        finished = done.stdout.count(": precision ")
        if finished < options.trials:
            raise ValueError(f"only {finished} of {options.trials} trials finished:\n{done.stdout}")
        return secs


def _places(options: _Options) -> Iterator[tuple[str, Place]]:
    yield "this machine", places.on_this_machine(1)[0]
    if options.hosts:
        yield "ssh", places.on_hosts(options.hosts, 1, "", options.ssh_config)[0]
    if options.spark:
        session = spark.open_session(options.spark)
        yield "Spark", spark.SparkPlace(session, 0, "")
        session.stop()


def _overhead(place: Place, options: _Options) -> list[float]:
    """Returns the seconds that trials took beside their programs."""
    with tempfile.TemporaryDirectory() as parent:
        found = []
        for i in range(1 + options.overhead_trials):  # the first one warms up
            order = Order(str(Path(parent, str(i))), _NOTHING, _NOTHING, follow=False)
            alone = 2 * _timed(functools.partial(_by_hand, _NOTHING))
            found.append(_timed(functools.partial(_as_trial, place, order)) - alone)
        return found[1:]


def _by_hand(command: Sequence[str]) -> None:
    full = [sys.executable, "-m", *command]
    subprocess.run(full, stdout=subprocess.DEVNULL, check=True)


def _as_trial(place: Place, order: Order) -> None:
    with place.start(order) as channel:
        *_, end = channel.events()
    if end.outcome is not Outcome.DONE:
        raise ValueError(f"a trial at {place.label} {end.outcome.value}: {end.reason}")


def _timed(act: Callable[[], None]) -> float:
    begin = time.monotonic()
    act()
    return time.monotonic() - begin


def _print(
    options: _Options, secs: dict[str, list[float]], overheads: dict[str, list[float]]
) -> None:
    shown = rich.table.Table("sweep", box=rich.box.MARKDOWN)
    for heading in ("seconds", "trials an hour", "times the first"):
        shown.add_column(heading, justify="right")
    medians = {kind: statistics.median(found) for kind, found in secs.items()}
    first = next(iter(medians.values()))
    for kind, median in medians.items():
        hourly = 3600 * options.trials / median
        shown.add_row(kind, f"{median:.1f}", f"{hourly:.0f}", f"{first / median:.2f}")
    rich.console.Console(width=100).print(shown)
    for name, found in overheads.items():
        print(f"- a trial on {name} takes {statistics.median(found):.2f} s more than its programs")


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
