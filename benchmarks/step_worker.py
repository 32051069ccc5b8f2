"""One host of benchmarks/step_benchmark.py: training steps with several kinds of gradients.

The kinds take turns in one process, on synthetic images. There is no weight decay and no moving
average of the weights: DDP has neither, and only gradients, exchange and momentum are compared.
"""

import dataclasses
import functools

import tensorflow as tf
from absl.flags import FlagValues

from benchmarks import timing
from benchmarks.host import HostOptions, counters, joined, write_cells
from inception import app
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, at_least, flag
from inception.training.batches import training_batches
from inception.training.problem import resolve
from terngrad.exchange.connection import Connection
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS
from terngrad.training import runtime

GRAD_BITS = {"float32": 32, "float16": 16, "ternary": 1}
ALONE = "compute alone"  # on every host at once, without an exchange


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(HostOptions):
    """The flags of one host."""

    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    net: str = flag("Training", TEXT, "lenet_slim", "net to train")
    batch_size: int = flag("Training", at_least(1), 32, "images per host and step", "images")
    bucket_elements: int = flag(
        "Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "values per bucket"
    )
    steps: int = flag("Runtime", at_least(1), 10, "steps per round", "steps")
    rounds: int = flag("Runtime", at_least(1), 7, "rounds for each kind of gradients")


def main(values: FlagValues) -> None:
    """Measures the kinds of gradients in turns."""
    options = table.read(Options, values)
    runtime.configure(
        intra_threads=options.num_intra_threads,
        inter_threads=options.num_inter_threads,
        deterministic=True,
        log_placement=False,
    )
    with joined(options) as connection:
        write_cells(_measure(options, connection), options, connection.rank)


def _measure(options: Options, connection: Connection) -> list[dict]:
    """Returns the figures of each kind."""
    sides = _sides(options, connection)
    for side in sides.values():
        side(1)  # compiles and connects
    figures = ("ms", "interface_bytes", "cpu_ms", "page_faults")
    cells = {kind: {"side": kind, **{name: [] for name in figures}} for kind in sides}
    for kind in list(sides) * options.rounds:
        _meet(connection)
        before = counters(options.interface)
        wall, _ = timing.ms_per_step(sides[kind], options.steps)
        _meet(connection)
        since = counters(options.interface).since(before)
        each = (wall, since.sent, 1000 * since.cpu_seconds, since.page_faults)
        for name, figure in zip(figures, each, strict=True):
            cells[kind][name].append(figure if name == "ms" else figure / options.steps)
    return list(cells.values())


def _sides(options: Options, connection: Connection) -> dict[str, timing.Side]:
    config = TrainConfig(
        dataset_name=options.dataset,
        net=options.net,
        batch_size=options.batch_size,
        clip_factor=2.5,
        quantize_logits=True,
        optimizer="momentum",
        weight_decay=0.0,
        moving_average_decay=0.0,
        benchmark_mode=True,
        bucket_elements=options.bucket_elements,
    )
    goal = resolve(config)
    batches = training_batches(config, goal, None, 0, connection.rank, connection.size)
    sides = {ALONE: timing.suite_side(dataclasses.replace(config, grad_bits=32), batches)}
    for kind, bits in GRAD_BITS.items():
        chosen = dataclasses.replace(config, grad_bits=bits)
        sides[kind] = timing.suite_side(chosen, batches, connection)
    return sides


def _meet(connection: Connection) -> None:
    connection.all_gather(tf.zeros([1]), "benchmark/barrier")


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, Options))
