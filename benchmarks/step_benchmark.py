"""How long does a training step on several hosts take, with each kind of gradients?

If --torch_python names an interpreter that has torch, also measures PyTorch's DDP on the same hosts
(float32, its float16 hook, PowerSGD). Hosts are network namespaces on this machine
(network.sh; needs root), with one thread per operation.

python -m benchmarks.step_benchmark --torch_python=DIR/bin/python --json=figures.json
python -m benchmarks.step_benchmark --net=vgg_16 --dataset=imagenet --batch_size=1 --steps=1 --apart
python -m benchmarks.step_benchmark --kinds="ternary,7 levels and 16 local steps" --steps=16
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import host_network, report
from benchmarks.host import ENGINES
from benchmarks.host_network import RATES, HostNetwork
from benchmarks.recipes import DDP_KINDS
from benchmarks.report import counts, names_flag
from benchmarks.step_worker import KERAS, KERAS_AT_ONCE, KINDS, LOCAL_STEPS, StepOptions
from inception.flags import table
from inception.flags.table import BOOLEAN, TEXT, at_least, flag, number
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS

_FIGURES = ("ms", "interface_bytes", "cpu_ms", "page_faults")  # DDP lacks the last
_DDP = str(Path(__file__).parent / "ddp" / "steps.py")
_DDP_NETS = (
    "lenet_slim",
    "cifar10_alexnet",
    "alexnet_v2",
    "vgg_16",
    "resnet_v1_50",
)  # of ddp/steps.py
_ENGINES = tuple(engine for engine in ENGINES if engine != "mpi")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.PictureOptions, StepOptions):
    hosts: int = flag("Distributed", at_least(2), 2, "number of hosts", "hosts")
    rates: tuple[str, ...] = names_flag(
        "Distributed", ("10mbit", *RATES), "bandwidths", RATES[::-1]
    )
    # parameter_server is one ps, on a host of its own.
    engines: tuple[str, ...] = names_flag("Distributed", _ENGINES, "engines", _ENGINES[:1])
    kinds: tuple[str, ...] = names_flag(
        "Training", KINDS, "kinds of gradients", [kind for kind in KINDS if kind not in LOCAL_STEPS]
    )
    ddp_kinds: tuple[str, ...] = names_flag(
        "Training", DDP_KINDS, "kinds of gradients with DDP", DDP_KINDS[:3]
    )
    apart: bool = flag("Runtime", BOOLEAN, False, "each kind in processes of its own: less memory")
    bucket_elements: tuple[int, ...] = flag(
        "Training", counts(), (DEFAULT_BUCKET_ELEMENTS,), "bucket sizes to compare"
    )
    dataset: str = flag("Data", TEXT, "mnist", "data set of the net")
    timeout_secs: float = flag("Runtime", number(), 1800.0, "time-out by bandwidth", "seconds")
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torch; not set = no DDP")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.torch_python and self.net not in _DDP_NETS:
            allowed = f"DDP is for --net={', '.join(_DDP_NETS)}"
            raise table.refuse("torch_python", self.torch_python, allowed)
        for kind in set(self.kinds) & set(LOCAL_STEPS):
            if self.steps % LOCAL_STEPS[kind]:
                allowed = f"must be a multiple of {LOCAL_STEPS[kind]} with --kinds={kind}"
                raise table.refuse("steps", self.steps, allowed)


def main(options: _Options) -> None:
    """Measures each bandwidth."""
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
                for kinds in _turns(options.ddp_kinds, apart=options.apart):
                    cells += _joined(_ddp(options, network, kinds), rate, "")
    report.print_table([_row(cell) for cell in cells], texts=2)
    panels = {
        f"{options.net}, {options.hosts} hosts, {rate}": {
            cell["variant"]: cell["ms"] for cell in cells if cell["rate"] == rate
        }
        for rate in options.rates
    }
    report.draw_bars(options.png, panels, "ms per step")
    report.conclude(
        options,
        {"cells": cells},
        net=options.net,
        hosts=options.hosts,
        images=options.batch_size,
        optimizer=options.optimizer,
    )


def _turns(kinds: Sequence[str], *, apart: bool) -> list[Sequence[str]]:
    """Returns the kinds that take turns in the same processes.

    Local steps have processes of their own: their operations have the names of the others', and
    exchange something else.
    """
    together = [kind for kind in kinds if not (apart or kind in LOCAL_STEPS)]
    alone = [[kind] for kind in kinds if kind not in together]
    return [together, *alone] if together else alone


def _of_suite(
    options: _Options, network: HostNetwork, rate: str, engine: str, bucket_elements: int
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
    for turn in _turns(kinds, apart=served or options.apart):
        services = host_network.exchange_services(network, engine, options.hosts, int(served))
        with services as (flags, _):
            command = report.module("benchmarks.step_worker")
            command += [*report.shared_flags(options, StepOptions), *flags]
            command += [f"--dataset={options.dataset}", f"--kinds={','.join(turn)}"]
            command.append(f"--bucket_elements={bucket_elements}")
            cells += _joined(_on_each_host(options, network, command), rate, name)
    return cells


def _ddp(options: _Options, network: HostNetwork, kinds: Sequence[str]) -> list[dict]:
    command = [options.torch_python, _DDP, *report.shared_flags(options, StepOptions)]
    command += [f"--interface={network.interface}", f"--master={network.addresses[0]}"]
    command += [f"--kinds={','.join(kinds)}", f"--hosts={options.hosts}"]
    return _on_each_host(options, network, command)


def _on_each_host(options: _Options, network: HostNetwork, command: Sequence[str]) -> list[dict]:
    commands = [[*command, f"--task_id={i}"] for i in range(options.hosts)]
    return network.collect(commands, options.timeout_secs)


def _joined(found: Sequence[Sequence[dict]], rate: str, name: str) -> list[dict]:
    """Joins the cells of all hosts: a step takes as long as on the slowest host."""
    return [
        {
            "rate": rate,
            "variant": cells[0]["variant"] + name,
            **{
                name: np.max([cell[name] for cell in cells], axis=0).tolist()
                for name in _FIGURES
                if name in cells[0]
            },
        }
        for cells in zip(*found, strict=True)
    ]


def _row(cell: dict) -> dict[str, str]:
    sent = {"MB/step": f"{np.median(cell['interface_bytes']) / 1e6:.2f}"}
    titles = {"cpu_ms": "CPU ms/step", "page_faults": "page faults/step"}  # DDP lacks the last
    used = {titles[name]: f"{np.median(cell[name]):.0f}" for name in titles if name in cell}
    place = {"rate": cell["rate"], "gradients": cell["variant"]}
    return place | report.summary("ms/step", cell["ms"]) | sent | used


if __name__ == "__main__":
    report.run(main, _Options)
