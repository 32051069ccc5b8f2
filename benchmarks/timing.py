"""Times training steps of several sides, which take turns in one process."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import report
from inception.flags.configs import Threads, TrainConfig
from inception.flags.table import BOOLEAN, at_least, flag, number
from inception.training.build import build_training
from inception.training.problem import resolve
from terngrad.exchange.connection import Connection
from terngrad.training import runtime

Side = Callable[[int], None]  # makes the given number of steps

_STEPS_PER_EPOCH = 1000.0  # for the learning rate, which does not change the time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(report.PictureOptions, Threads):
    """The flags of a benchmark that times steps."""

    rounds: int = flag("Runtime", at_least(1), 15, "timed slices per side", "slices")
    slice_secs: float = flag("Runtime", number(), 1.0, "length of a slice", "seconds")
    deterministic: bool = flag("Runtime", BOOLEAN, True, "as in the training programs")


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds per step, by side.

    Attributes:
      wall: elapsed time.
      cpu: CPU time of the process on all cores; other load hardly changes it.
    """

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of the steps of several sides.

    Attributes:
      title: subject of the comparison.
      times: times of each side in each round.
      ratios: results of the comparison, by name.
    """

    title: str
    times: Times
    ratios: Mapping[str, float]

    def print(self) -> None:
        """Prints median and quartiles of each side, then the ratios, as Markdown."""
        rows = []
        for side, wall in self.times.wall.items():
            cpu = {"CPU ms/step": f"{np.median(self.times.cpu[side]):.1f}"}
            rows.append({"side": side} | report.summary("ms/step", wall) | cpu)
        report.print_table(rows, self.title)
        report.print_lines(self.ratios)


def configure(threads: Threads, *, deterministic: bool) -> None:
    """Configures TensorFlow as the training programs do."""
    runtime.configure(
        intra_threads=threads.num_intra_threads,
        inter_threads=threads.num_inter_threads,
        deterministic=deterministic,
    )


def suite_side(
    config: TrainConfig, batches: tf.data.Dataset, connection: Connection | None = None
) -> Side:
    """Returns the steps of a training program with this config, on these batches."""
    goal = resolve(config)
    training = build_training(config, goal, _STEPS_PER_EPOCH, ["/CPU:0"], connection)
    runner = training.next_runner(is_float=False)
    iterator = iter(batches)

    def run(count: int) -> None:
        if int(runner.many(iterator, count).done) != count:
            raise ValueError(f"{config.net}: the training diverged, so its time is meaningless.")

    return run


def alternate(sides: Mapping[str, Side], options: Options, lead_in: int = 0) -> Times:
    """Times a slice of each side in each round, in alternating order.

    So load of other processes that lasts longer than a round slows all sides alike.

    Args:
      sides: the sides to compare, by name.
      options: number and length of the slices; a slice has at least one step.
      lead_in: untimed steps before each slice.

    Returns:
      The times of each side, one figure per round.
    """
    counts = {name: _steps_within(options.slice_secs, side) for name, side in sides.items()}
    times = Times({name: [] for name in sides}, {name: [] for name in sides})
    for i in range(options.rounds):
        for name in list(sides)[:: -1 if i % 2 else 1]:
            sides[name](lead_in)
            wall, cpu = ms_per_step(sides[name], counts[name])
            times.wall[name].append(wall)
            times.cpu[name].append(cpu)
    return times


def ratio(times: Mapping[str, Sequence[float]], side: str, base: str) -> float:
    """Returns a side's duration per step divided by another's: the median over the rounds."""
    return float(np.median(np.divide(times[side], times[base])))


def _steps_within(seconds: float, side: Side) -> int:
    side(2)  # compiles and fills memory pools
    wall, _ = ms_per_step(side, 1)
    if wall < 1000 * seconds:
        wall, _ = ms_per_step(side, 5)
    return max(1, round(1000 * seconds / wall))


def ms_per_step(side: Side, count: int) -> tuple[float, float]:
    """Returns mean elapsed and CPU milliseconds per step, over `count` steps."""
    wall, cpu = time.perf_counter(), time.process_time()
    side(count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1000 * wall / count, 1000 * cpu / count


def finish(comparisons: Sequence[Comparison], options: Options) -> None:
    """Prints the conditions and writes the files that the options name."""
    threads = f"intra-op {options.num_intra_threads}, inter-op {options.num_inter_threads}"
    report.conclude(
        options,
        {"comparisons": [dataclasses.asdict(comparison) for comparison in comparisons]},
        threads=f"{threads} (0 = TensorFlow's choice)",
        deterministic=options.deterministic,
    )
    panels = {comparison.title: comparison.times.wall for comparison in comparisons}
    report.draw_bars(options.png, panels, "ms per step")
