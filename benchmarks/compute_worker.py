"""One side of benchmarks/compute_benchmark.py: steps of a net with one setting of TensorFlow.

A line of JSON tells the times of the first steps. A line "times COUNT" on stdin asks for more, and
"profile COUNT" for milliseconds by kind of operation. The steps are those of the training
programs on one node, without weight decay and moving averages, as in benchmarks/step_worker.py.
"""

import collections
import dataclasses
import functools
import glob
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping

import tensorflow as tf
from absl.flags import FlagValues
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import timing
from inception import app
from inception.flags import table
from inception.flags.configs import Threads, TrainConfig
from inception.flags.table import BOOLEAN, NAMES, TEXT, at_least, flag
from inception.training.batches import training_batches
from inception.training.problem import resolve
from terngrad import allocator
from terngrad.training import runtime

_PS_PER_MS = 1e9
_OPERATION = re.compile(r"[^:]+:(\w+)")  # TensorFlow names the runs of operations NAME:TYPE
_CONTAINERS = ("While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(Threads):
    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    net: str = flag("Training", TEXT, "lenet_slim", "net to train")
    batch_size: int = flag("Training", at_least(1), 32, "images in a step", "images")
    on: tuple[str, ...] = flag("Runtime", NAMES, (), "options of Grappler to turn on")
    off: tuple[str, ...] = flag("Runtime", NAMES, (), "options of Grappler to turn off")
    deterministic: bool = flag("Runtime", BOOLEAN, True, "as in the training programs")


def main(values: FlagValues) -> None:
    """Answers until stdin ends."""
    options = table.read(_Options, values)
    runtime.configure(
        intra_threads=options.num_intra_threads,
        inter_threads=options.num_inter_threads,
        deterministic=options.deterministic,
        log_placement=False,
    )
    chosen = dict.fromkeys(options.on, True) | dict.fromkeys(options.off, False)
    tf.config.optimizer.set_experimental_options(chosen)
    config = TrainConfig(
        dataset_name=options.dataset,
        net=options.net,
        batch_size=options.batch_size,
        weight_decay=0.0,
        moving_average_decay=0.0,
        benchmark_mode=True,
    )
    side = timing.suite_side(config, training_batches(config, resolve(config), None, 0))
    print(json.dumps(_times(side, 2)), flush=True)
    answers = {"times": _times, "profile": _profile}
    for request in sys.stdin:
        kind, count = request.split()
        print(json.dumps(answers[kind](side, int(count))), flush=True)


def _times(side: timing.Side, count: int) -> dict[str, float]:
    faults = allocator.page_faults()
    wall, cpu = timing.ms_per_step(side, count)
    faults = allocator.page_faults() - faults
    return {"ms": wall, "cpu_ms": cpu, "page_faults": faults / count}


def _profile(side: timing.Side, count: int) -> Mapping[str, float]:
    """Returns milliseconds a step, from the median run of each operation."""
    space = xplane_pb2.XSpace()
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            side(count)
        (path,) = glob.glob(os.path.join(folder, "plugins", "profile", "*", "*.xplane.pb"))
        with open(path, "rb") as file:
            space.ParseFromString(file.read())
    runs: dict[str, list[float]] = collections.defaultdict(list)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                runs[name].append(event.duration_ps / _PS_PER_MS)
    spent: dict[str, float] = collections.Counter()
    for name, times in runs.items():
        named = _OPERATION.fullmatch(name)
        if named and named[1] not in _CONTAINERS:
            spent[named[1]] += statistics.median(times) * len(times) / count
    return spent


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
