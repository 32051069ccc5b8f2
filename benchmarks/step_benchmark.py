"""How long does a training step on several hosts take, with each kind of gradients?

If --torch_python names an interpreter that has torch, also measures PyTorch's DDP on the same hosts
(float32, its float16 hook, its PowerSGD of rank 1). Hosts are network namespaces on this machine
(network.sh; needs root), with one thread per operation.

python -m benchmarks.step_benchmark --torch_python=DIR/bin/python --json=figures.json
python -m benchmarks.step_benchmark --net=vgg_16 --dataset=imagenet --batch_size=1 --steps=1 --apart
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import host_network, report
from benchmarks.choices import some_of
from benchmarks.host import ENGINES
from benchmarks.step_worker import KERAS, KERAS_AT_ONCE, KINDS, OPTIMIZERS
from inception import app
from inception.flags import table
from inception.flags.table import BOOLEAN, NAMES, TEXT, at_least, flag, number, one_of
from inception.results import pictures
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS

_THREADS = ("--num_intra_threads=1", "--num_inter_threads=2")
_FIGURES = ("ms", "interface_bytes", "cpu_ms", "page_faults")  # DDP lacks the last
_DDP = str(Path(__file__).with_name("ddp_worker.py"))
_DDP_NETS = ("lenet_slim", "alexnet_v2", "vgg_16", "resnet_v1_50")  # of ddp_nets.py
_DDP_KINDS = ("float32", "float16", "PowerSGD rank 1")
_ENGINES = tuple(engine for engine in ENGINES if engine != "mpi")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    hosts: int = flag("Distributed", at_least(2), 2, "number of hosts", "hosts")
    rates: tuple[str, ...] = flag(
        "Distributed",
        some_of(*host_network.RATES),
        tuple(reversed(host_network.RATES)),
        "bandwidths, in the notation of tc",
    )
    engines: tuple[str, ...] = flag(
        "Distributed",
        some_of(*_ENGINES),
        _ENGINES[:1],
        "engines of the exchange; parameter_server is one, on a host of its own",
    )
    kinds: tuple[str, ...] = flag("Training", some_of(*KINDS), KINDS, "kinds of gradients")
    ddp_kinds: tuple[str, ...] = flag(
        "Training", some_of(*_DDP_KINDS), _DDP_KINDS, "kinds of gradients of DDP"
    )
    apart: bool = flag(
        "Runtime", BOOLEAN, False, "measure each kind in processes of its own; needs less memory"
    )
    bucket_elements: tuple[str, ...] = flag(
        "Training", NAMES, (str(DEFAULT_BUCKET_ELEMENTS),), "bucket sizes to compare"
    )
    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    net: str = flag("Training", TEXT, "lenet_slim", "net to train")
    batch_size: int = flag("Training", at_least(1), 32, "images per host and step", "images")
    optimizer: str = flag("Training", one_of(*OPTIMIZERS), "momentum", "updates the weights")
    steps: int = flag("Runtime", at_least(1), 10, "steps per round", "steps")
    rounds: int = flag("Runtime", at_least(1), 7, "rounds for each kind of gradients")
    timeout_secs: float = flag("Runtime", number(), 1800.0, "time-out by bandwidth", "seconds")
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torch; not set = no DDP")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.torch_python and self.net not in _DDP_NETS:
            allowed = f"DDP is for --net={', '.join(_DDP_NETS)}"
            raise table.refuse("torch_python", self.torch_python, allowed)
        for size in self.bucket_elements:
            if not size.isdecimal() or not int(size):
                raise table.refuse("bucket_elements", size, "must be integers >= 1")


def main(values: FlagValues) -> None:
    """Measures each bandwidth."""
    options = table.read(_Options, values)
    cells: list[dict] = []
    serves = "parameter_server" in options.engines
    with host_network.network(options.hosts + serves) as network:
        for rate in options.rates:
            network.shape(rate)
            for engine, size in itertools.product(options.engines, options.bucket_elements):
                print(f"{rate}, {engine}, buckets of {size} values", flush=True)
                cells += _of_suite(options, network, rate, engine, size)
            if options.torch_python:
                print(f"{rate}, DDP", flush=True)
                for kinds in _turns(options.ddp_kinds, options):
                    commands = _ddp(options, network.addresses[0], kinds)
                    found = network.collect(commands, options.timeout_secs)
                    cells += _joined(found, rate, "")
    _print_table(cells)
    circumstances = report.environment() | {
        "net": options.net,
        "hosts": options.hosts,
        "images": options.batch_size,
        "optimizer": options.optimizer,
    }
    report.conclude(circumstances, {"cells": cells}, options.json)
    if options.png:
        _draw(cells, options)


def _turns(kinds: Sequence[str], options: _Options) -> list[Sequence[str]]:
    """Returns the kinds that take turns in the same processes."""
    return [[kind] for kind in kinds] if options.apart else [kinds]


def _of_suite(
    options: _Options, network: host_network.Network, rate: str, engine: str, bucket_elements: str
) -> list[dict]:
    """Returns the suite's cells with one engine."""
    served = engine == "parameter_server"
    # The library's group would synchronize a connection to ps that is synchronized already.
    kinds = [kind for kind in options.kinds if not (served and kind in (KERAS, KERAS_AT_ONCE))]
    name = f", {engine}" if len(options.engines) > 1 else ""
    if len(options.bucket_elements) > 1:
        name += f", buckets of {bucket_elements}"
    cells = []
    # A training of parameter servers is one training: each kind needs new ones.
    turns = [[kind] for kind in kinds] if served else _turns(kinds, options)
    for turn in turns:
        with host_network.meeting(network, engine, int(served), _THREADS) as (flags, _):
            commands = _suite(options, network.addresses, bucket_elements)
            added = [*flags, f"--engine={engine}", f"--kinds={','.join(turn)}"]
            found = network.collect([[*c, *added] for c in commands], options.timeout_secs)
        cells += _joined(found, rate, name)
    return cells


def _suite(options: _Options, addresses: Sequence[str], bucket_elements: str) -> list[list[str]]:
    common = [
        *(sys.executable, "-m", "benchmarks.step_worker", *_THREADS, *_common(options)),
        f"--dataset={options.dataset}",
        f"--net={options.net}",
        f"--bucket_elements={bucket_elements}",
        f"--worker_hosts={','.join(addresses[: options.hosts])}",
    ]
    return [[*common, f"--task_id={i}"] for i in range(options.hosts)]


def _ddp(options: _Options, master: str, kinds: Sequence[str]) -> list[list[str]]:
    command = [options.torch_python, _DDP, *_common(options), f"--master={master}"]
    command += [f"--net={options.net}", f"--kinds={','.join(kinds)}", f"--hosts={options.hosts}"]
    return [[*command, f"--task_id={i}"] for i in range(options.hosts)]


def _common(options: _Options) -> list[str]:
    return [
        f"--interface={host_network.INTERFACE}",
        f"--batch_size={options.batch_size}",
        f"--optimizer={options.optimizer}",
        f"--steps={options.steps}",
        f"--rounds={options.rounds}",
    ]


def _joined(found: Sequence[Sequence[dict]], rate: str, name: str) -> list[dict]:
    """Joins the cells of all hosts: a step takes as long as on the slowest host."""
    return [
        {
            "rate": rate,
            "side": cells[0]["side"] + name,
            **{
                name: np.max([cell[name] for cell in cells], axis=0).tolist()
                for name in _FIGURES
                if name in cells[0]
            },
        }
        for cells in zip(*found, strict=True)
    ]


def _print_table(cells: Sequence[dict]) -> None:
    table = rich.table.Table("rate", "gradients", box=rich.box.MARKDOWN)
    for heading in ("ms/step", "quartiles", "MB/step", "CPU ms/step", "page faults/step"):
        table.add_column(heading, justify="right")
    for cell in cells:
        low, median, high = np.percentile(cell["ms"], [25, 50, 75])
        sent = np.median(cell["interface_bytes"]) / 1e6
        quartiles = f"{low:.1f} to {high:.1f}"
        used = [f"{np.median(cell[name]):.0f}" for name in _FIGURES[2:] if name in cell]
        table.add_row(cell["rate"], cell["side"], f"{median:.1f}", quartiles, f"{sent:.2f}", *used)
    rich.console.Console(width=120).print(table)


def _draw(cells: Sequence[dict], options: _Options) -> None:
    figure = matplotlib.figure.Figure((5 * len(options.rates), 3.5), layout="constrained")
    for axes, rate in zip(
        figure.subplots(1, len(options.rates), squeeze=False)[0], options.rates, strict=True
    ):
        medians = {c["side"]: float(np.median(c["ms"])) for c in cells if c["rate"] == rate}
        bars = axes.barh(list(medians), list(medians.values()))
        axes.bar_label(bars, fmt="%.0f", padding=2)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.set(title=f"{options.net}, {options.hosts} hosts, {rate}", xlabel="ms per step")
    pictures.save(figure, options.png)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
