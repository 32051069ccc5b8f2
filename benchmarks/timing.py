"""Times training steps of several variants, which take turns in one process."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import report
from inception.flags.configs import Threads, TrainConfig
from inception.flags.table import BOOLEAN, at_least, flag, number
from inception.training.build import build_training
from inception.training.problem import problem_of
from terngrad.exchange.connection import Connection
from terngrad.training import runtime

Variant = Callable[[int], None]  # makes the given number of steps

_STEPS_PER_EPOCH = 1000.0  # for the learning rate, which does not change the time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(report.PictureOptions, Threads):
    """The flags of a benchmark that times steps."""

    rounds: int = flag("Runtime", at_least(1), 15, "timed slices per variant", "slices")
    slice_secs: float = flag("Runtime", number(), 1.0, "length of a slice", "seconds")
    deterministic: bool = flag("Runtime", BOOLEAN, True, "as in the training programs")


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds per step, by variant.

    Attributes:
      wall: elapsed time.
      cpu: CPU time of the process on all cores; other load hardly changes it.
    """

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of the steps of several variants.

    Attributes:
      title: subject of the comparison.
      times: times of each variant in each round.
      ratios: results of the comparison, by name.
    """

    title: str
    times: Times
    ratios: Mapping[str, float]

    def print(self) -> None:
        """Prints median and quartiles of each variant, then the ratios, as Markdown."""
        rows = []
        for variant, wall in self.times.wall.items():
            cpu = {"CPU ms/step": f"{np.median(self.times.cpu[variant]):.1f}"}
            rows.append({"variant": variant} | report.summary("ms/step", wall) | cpu)
        report.print_table(rows, self.title)
        report.print_lines(self.ratios)


def configure(threads: Threads, *, deterministic: bool) -> None:
    """Configures TensorFlow as the training programs do."""
    runtime.configure(
        intra_threads=threads.num_intra_threads,
        inter_threads=threads.num_inter_threads,
        deterministic=deterministic,
    )


def suite_variant(
    config: TrainConfig, batches: tf.data.Dataset, connection: Connection | None = None
) -> Variant:
    """Returns the steps of a training program with this config, on these batches.

    With local steps it makes whole rounds: the number of steps is rounded up to a multiple of them.
    """
    problem = problem_of(config)
    training = build_training(config, problem, _STEPS_PER_EPOCH, ["/CPU:0"], connection)
    runner = training.next_runner(is_float=False)
    iterator = iter(batches)

    def run(count: int) -> None:
        calls = -(-count // config.local_steps)  # a runner counts a round as one step
        if int(runner.many(iterator, calls).done) != calls:
            raise ValueError(f"{config.net}: the training diverged, so its time is meaningless.")

    return run


def alternate(variants: Mapping[str, Variant], options: Options, warmup_steps: int = 0) -> Times:
    """Times a slice of each variant in each round, in alternating order.

    So load of other processes that lasts longer than a round slows all variants alike.

    Args:
      variants: the variants to compare, by name.
      options: number and length of the slices; a slice has at least one step.
      warmup_steps: untimed steps before each slice.

    Returns:
      The times of each variant, one figure per round.
    """
    counts = {
        name: _steps_within(options.slice_secs, variant) for name, variant in variants.items()
    }
    times = Times({name: [] for name in variants}, {name: [] for name in variants})
    for i in range(options.rounds):
        for name in list(variants)[:: -1 if i % 2 else 1]:
            variants[name](warmup_steps)
            wall, cpu = ms_per_step(variants[name], counts[name])
            times.wall[name].append(wall)
            times.cpu[name].append(cpu)
    return times


def ratio(times: Mapping[str, Sequence[float]], variant: str, base: str) -> float:
    """Returns a variant's duration per step divided by another's: the median over the rounds."""
    return float(np.median(np.divide(times[variant], times[base])))


def _steps_within(seconds: float, variant: Variant) -> int:
    variant(2)  # compiles and fills memory pools
    wall, _ = ms_per_step(variant, 1)
    if wall < 1000 * seconds:
        wall, _ = ms_per_step(variant, 5)
    return max(1, round(1000 * seconds / wall))


def ms_per_step(variant: Variant, count: int) -> tuple[float, float]:
    """Returns mean elapsed and CPU milliseconds per step, over `count` steps."""
    wall, cpu = time.perf_counter(), time.process_time()
    variant(count)
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
