"""Does a worker exchange gradients while it still computes others?

Reads the newest profile that a training wrote with --profile_steps, prints how long exchanges and
computation overlapped, and draws the operations.

python -m benchmarks.overlap_profile --profile_dir=TRAIN_DIR --png=overlap.png
"""

import dataclasses
import functools
import glob
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.figure
import numpy as np
from absl.flags import FlagValues
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import report
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag
from inception.results import pictures

NET, CODEC, EXCHANGE = "net and optimizer", "statistics, codes", "exchange between workers"
_LANES = (NET, CODEC, EXCHANGE)
_PS_PER_MS = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    profile_dir: str = flag("Data", TEXT, "/tmp/mnist_train", "the training's --train_dir")
    ms: int = flag("Runtime", at_least(1), 200, "length of the profile to draw", "milliseconds")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for the picture")


class Operation(NamedTuple):
    """One run of an operation: its lane, begin and end, in ms from the profile's start."""

    lane: str
    begin: float
    end: float


def main(values: FlagValues) -> None:
    """Prints and draws the overlap."""
    options = table.read(_Options, values)
    operations = read(options.profile_dir)
    busy = {lane: merged([o for o in operations if o.lane == lane]) for lane in _LANES}
    both = shared(merged([o for o in operations if o.lane != EXCHANGE]), busy[EXCHANGE])
    figures = {lane: length(spans) for lane, spans in busy.items()} | {"overlapped": both}
    for lane in _LANES:
        print(f"{lane}: {figures[lane]:.1f} ms")
    print(f"exchange during computation: {both:.1f} ms")
    if options.json:
        report.write_json(options.json, {"environment": report.environment(), "ms": figures})
    if options.png:
        _draw(operations, options)


def read(profile_dir: str) -> list[Operation]:
    """Returns the operations of the newest profile of a training.

    Raises:
      ValueError: there is no profile, or its training had only one worker.
    """
    pattern = os.path.join(glob.escape(profile_dir), "plugins", "profile", "*", "*.xplane.pb")
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise table.refuse(
            "profile_dir", profile_dir, "holds no profile; train with --profile_steps"
        )
    space = xplane_pb2.XSpace()
    with open(paths[-1], "rb") as file:
        space.ParseFromString(file.read())
    found = [operation for plane in space.planes for operation in _operations(plane)]
    if not any(operation.lane == EXCHANGE for operation in found):
        raise table.refuse("profile_dir", profile_dir, "holds a profile without exchanges")
    first = min(operation.begin for operation in found)
    return [Operation(o.lane, o.begin - first, o.end - first) for o in found]


def _operations(plane: xplane_pb2.XPlane) -> list[Operation]:
    found = []
    for line in plane.lines:
        for event in line.events:
            # TensorFlow names the runs of operations NAME:TYPE; other events are its own work.
            named = re.fullmatch(r"[^:]+:(\w+)", plane.event_metadata[event.metadata_id].name)
            if named:
                kind = named[1]
                begin = line.timestamp_ns / 1e6 + event.offset_ps / _PS_PER_MS
                found.append(Operation(_lane(kind), begin, begin + event.duration_ps / _PS_PER_MS))
    return found


def _lane(kind: str) -> str:
    if kind.startswith(("Collective", "TerngradJoin", "TerngradEncodeJoin")):
        return EXCHANGE
    return CODEC if kind.startswith("Terngrad") else NET


def merged(operations: Sequence[Operation]) -> list[tuple[float, float]]:
    """Returns the spans in which at least one of the operations ran."""
    spans: list[tuple[float, float]] = []
    for _, begin, end in sorted(operations, key=lambda o: o.begin):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def length(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the sum of the spans' lengths."""
    return sum(end - begin for begin, end in spans)


def shared(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float:
    """Returns the time in which both were busy."""
    return sum(
        max(0.0, min(end, last) - max(begin, first)) for begin, end in one for first, last in other
    )


def _draw(operations: Sequence[Operation], options: _Options) -> None:
    figure = matplotlib.figure.Figure((12, 2.5), layout="constrained")
    axes = figure.subplots()
    for row, lane in enumerate(_LANES):
        shown = [o for o in operations if o.lane == lane and o.begin < options.ms]
        bars = [(o.begin, o.end - o.begin) for o in shown]
        axes.broken_barh(bars, (row - 0.4, 0.8), color=f"C{row}", alpha=0.7)
    axes.set_yticks(np.arange(len(_LANES)), _LANES)
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", xlim=(0, options.ms))
    pictures.save(figure, options.png)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
