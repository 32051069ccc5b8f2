"""Timing of training steps: sides that take turns in one process."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from inception.flags.configs import Threads, TrainConfig
from inception.flags.table import BOOLEAN, TEXT, at_least, flag, number
from inception.training import runtime
from inception.training.build import build_training
from inception.training.problem import resolve
from terngrad.exchange.connection import Connection

Side = Callable[[int], None]  # takes so many steps

_STEPS_PER_EPOCH = 1000.0  # of the learning rate, which has no part in the time
_DEVICE = "/CPU:0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(Threads):
    """The flags of a benchmark that times steps."""

    rounds: int = flag("Runtime", at_least(1), 15, "slices of each side", "slices")
    slice_secs: float = flag("Runtime", number(), 1.0, "length of a slice", "seconds")
    deterministic: bool = flag("Runtime", BOOLEAN, True, "as in the training programs")
    json: str = flag("Runtime", TEXT, "", "file that takes the figures, too")
    png: str = flag("Runtime", TEXT, "", "file that takes a picture of them")


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds a step, by side.

    Attributes:
      wall: what passed on the clock.
      cpu: what the process computed, on all cores together; load from elsewhere hardly moves it.
    """

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Steps of several sides.

    Attributes:
      title: what was compared.
      times: of each side in each round.
      ratios: what the comparison is about, by name.
    """

    title: str
    times: Times
    ratios: Mapping[str, float]


def configure(options: Options) -> None:
    """Makes TensorFlow's settings as the training programs make them."""
    runtime.configure(
        intra_threads=options.num_intra_threads,
        inter_threads=options.num_inter_threads,
        deterministic=options.deterministic,
        log_placement=False,
    )


def suite_side(
    config: TrainConfig, batches: tf.data.Dataset, connection: Connection | None = None
) -> Side:
    """The steps of a training program with this config, on these batches."""
    goal = resolve(config)
    runner = build_training(config, goal, _STEPS_PER_EPOCH, [_DEVICE], connection).runner
    iterator = iter(batches)

    def run(count: int) -> None:
        if int(runner.many(iterator, count).done) != count:
            raise ValueError(f"{config.net}: the training diverged, so its time means nothing.")

    return run


def alternate(sides: Mapping[str, Side], options: Options, lead_in: int = 0) -> Times:
    """Times a slice of each side in each round, forth and back.

    So load from elsewhere that outlasts a round slows all sides alike.

    Args:
      sides: what is compared, by name.
      options: number and length of the slices; a slice has at least one step.
      lead_in: untimed steps before a slice.

    Returns:
      The times of each side, a figure a round.
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
    """Duration of a step of one side over that of another: the median of the rounds' ratios."""
    return float(np.median(np.divide(times[side], times[base])))


def _steps_within(seconds: float, side: Side) -> int:
    side(2)  # compiles, fills pools
    wall, _ = ms_per_step(side, 5)
    return max(1, round(1000 * seconds / wall))


def ms_per_step(side: Side, count: int) -> tuple[float, float]:
    """Milliseconds on the clock and of computing, on average over `count` steps."""
    wall, cpu = time.perf_counter(), time.process_time()
    side(count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1000 * wall / count, 1000 * cpu / count
