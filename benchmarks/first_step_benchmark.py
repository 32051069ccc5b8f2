"""How long does it take until the first step is made, beside Keras' fit, and with several nodes?

Each net, Keras' fit and each number of nodes has a process of its own, and these take turns. The
time begins after TensorFlow's import: it covers building the net, tracing, optimizing the graph and
computing one step. CPU times compare the sides; other load hardly changes them.

python -m benchmarks.first_step_benchmark --json=figures.json
python -m benchmarks.first_step_benchmark --dataset=mnist --nets=lenet_slim --nodes=1,8
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import report
from benchmarks.choices import some_of
from inception import app
from inception.flags import table
from inception.flags.table import NAMES, TEXT, at_least, flag
from slim.nets import catalog
from terngrad import allocator

_THREADS = ("--num_intra_threads=1", "--num_inter_threads=2")
_KERAS = "Keras' fit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    dataset: str = flag("Data", TEXT, "imagenet", "data set of the nets")
    nets: tuple[str, ...] = flag(
        "Training", some_of(*catalog.NETS), ("inception_v3", "inception_resnet_v2"), "nets"
    )
    nodes: tuple[str, ...] = flag("Training", NAMES, ("1", "2", "4"), "numbers of nodes")
    images: int = flag("Training", at_least(1), 2, "images per node", "images")
    rounds: int = flag("Runtime", at_least(1), 3, "processes of each side")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")

    def __post_init__(self) -> None:
        super().__post_init__()
        for nodes in self.nodes:
            if not nodes.isdecimal() or not int(nodes):
                raise table.refuse("nodes", nodes, "must be integers >= 1")


def main(values: FlagValues) -> None:
    """Measures each net."""
    options = table.read(_Options, values)
    nets = []
    for net in options.nets:
        nets.append({"net": net, "sides": _measure(net, options)})
        _print(**nets[-1])
    circumstances = report.environment() | {"images per node": options.images}
    report.conclude(circumstances, {"nets": nets}, options.json)


def _measure(net: str, options: _Options) -> dict[str, list[dict]]:
    """Returns the times of each side in each round."""
    numbers = {_KERAS: "0"} | {_side(nodes): nodes for nodes in options.nodes}
    sides: dict[str, list[dict]] = {side: [] for side in numbers}
    for i in range(options.rounds):
        for side in list(sides)[:: -1 if i % 2 else 1]:
            sides[side].append(_first_step(net, numbers[side], options))
    return sides


def _side(nodes: str) -> str:
    return "1 node" if nodes == "1" else f"{nodes} nodes"


def _first_step(net: str, nodes: str, options: _Options) -> dict:
    command = [sys.executable, "-m", "benchmarks.first_step_worker", *_THREADS]
    command += [f"--dataset={options.dataset}", f"--net={net}", f"--nodes={nodes}"]
    command.append(f"--images={options.images}")
    environment = allocator.with_huge_pages(os.environ)  # as the programs have
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if ended.returncode:
        raise ValueError(f"this command has failed: {' '.join(command)}")
    return json.loads(ended.stdout.splitlines()[-1])


def _print(net: str, sides: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    found = rich.table.Table("first step", title=net, box=rich.box.MARKDOWN)
    for heading in ("CPU s", "lowest", f"to {_KERAS}", "to 1 node", "s"):
        found.add_column(heading, justify="right")
    median = lambda side, figure: float(np.median([cell[figure] for cell in sides[side]]))
    for side, cells in sides.items():
        cpu = median(side, "cpu_s")
        bases = [median(base, "cpu_s") if base in sides else np.nan for base in (_KERAS, "1 node")]
        lowest = min(cell["cpu_s"] for cell in cells)
        ratios = [f"{cpu / base:.2f}" for base in bases]
        found.add_row(side, f"{cpu:.1f}", f"{lowest:.1f}", *ratios, f"{median(side, 's'):.1f}")
    rich.console.Console(width=100).print(found)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
