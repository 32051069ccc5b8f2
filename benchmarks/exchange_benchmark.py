"""What does an exchange of gradients cost between hosts, and what crosses the network?

Hosts are network namespaces on this machine (network.sh; needs root), each with one thread within
an operation. With every engine, number of hosts and bandwidth: all-reduce of float32 by the engine
itself, the suite's exchanges of float32, float16 and ternary codes, from gradients to their mean.

python -m benchmarks.exchange_benchmark --json=figures.json --png=figures.png
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import host_network, report
from benchmarks.exchange_worker import EXCHANGES, RING
from benchmarks.gradients import NETS
from inception import app, flag_table
from inception.flag_table import NAMES, TEXT, at_least, flag, number
from terngrad.codecs.planes import plane_count
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS

_ENGINES = ("collective", "mpi")
_THREADS = ("--num_intra_threads=1", "--num_inter_threads=2")
_START_SECS = 120.0  # of the processes of a run, and their first exchanges, beside the cells


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(flag_table.Checked):
    hosts: tuple[str, ...] = flag("Distributed", NAMES, ("2", "4", "8"), "numbers of hosts")
    rates: tuple[str, ...] = flag(
        "Distributed", NAMES, host_network.RATES, "bandwidths, as tc takes them"
    )
    engines: tuple[str, ...] = flag("Distributed", NAMES, _ENGINES, "collective, mpi")
    gradients: tuple[str, ...] = flag("Training", NAMES, NETS, "nets whose gradients are exchanged")
    exchanges: tuple[str, ...] = flag("Training", NAMES, EXCHANGES, "kinds of exchange")
    bucket_elements: int = flag("Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "of a bucket")
    rounds: int = flag("Runtime", at_least(1), 11, "timed exchanges of a cell at most")
    cell_secs: float = flag("Runtime", number(), 15.0, "after which a cell ends", "seconds")
    cell_timeout_secs: float = flag("Runtime", number(), 400.0, "of a cell at most", "seconds")
    json: str = flag("Runtime", TEXT, "", "file that takes the figures, too")
    png: str = flag("Runtime", TEXT, "", "file that takes a picture of them")

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = {
            "hosts": [str(i) for i in range(2, 100)],
            "rates": host_network.RATES,
            "engines": _ENGINES,
            "gradients": NETS,
            "exchanges": EXCHANGES,
        }
        for name, choices in allowed.items():
            for value in getattr(self, name):
                if value not in choices:
                    few = choices if len(choices) < 10 else (choices[0], "...", choices[-1])
                    raise flag_table.refuse(name, value, f"must be of {', '.join(few)}")


def main(values: FlagValues) -> None:
    """Measures group after group of hosts, and tells all at the end."""
    options = flag_table.read(_Options, values)
    cells: list[dict] = []
    for size in map(int, options.hosts):
        with host_network.network(size) as network:
            for rate in options.rates:
                network.shape(rate)
                for engine in options.engines:
                    print(f"{size} hosts, {rate}, {engine}", flush=True)
                    cells += _measure(options, network, rate, engine)
                    if options.json:  # hours of measuring do not wait for the last cell
                        content = {"environment": report.environment(), "cells": cells}
                        report.write_json(options.json, content)
    _print_table(cells)
    if options.png:
        _draw(cells, options.png)


def formula_bytes(values: int, size: int, exchange: str) -> float:
    """Bytes that a host sends to exchange so many values in two shots (terngrad/exchange)."""
    floats = {"float32": 32, RING: 32, "float16": 16}.get(exchange)
    bits = 2 * floats if floats else 2 + plane_count(size)
    return values * bits * (size - 1) / size / 8


def _measure(
    options: _Options, network: host_network.Network, rate: str, engine: str
) -> list[dict]:
    names = {name: ",".join(getattr(options, name)) for name in ("gradients", "exchanges")}
    command = [
        *(sys.executable, "-m", "benchmarks.exchange_worker", f"--engine={engine}", *_THREADS),
        *(f"--{name}={value}" for name, value in names.items()),
        f"--interface={host_network.INTERFACE}",
        f"--bucket_elements={options.bucket_elements}",
        f"--rounds={options.rounds}",
        f"--cell_secs={options.cell_secs}",
    ]
    count = len(options.gradients) * len(options.exchanges)
    timeout = _START_SECS + count * options.cell_timeout_secs
    if engine == "mpi":
        found = network.collect_with_mpi(command, timeout)
    else:
        worker_hosts = f"--worker_hosts={','.join(network.addresses)}"
        each = [[*command, worker_hosts, f"--task_id={i}"] for i in range(network.size)]
        found = network.collect(each, timeout)
    return [
        {"hosts": network.size, "rate": rate, "engine": engine} | _joined(cells, network.size)
        for cells in zip(*found, strict=True)
    ]


def _joined(cells: Sequence[dict], size: int) -> dict:
    """One cell from those of all hosts: an exchange takes as long as on the slowest."""
    cell = {name: cells[0][name] for name in ("gradients", "exchange", "values")}
    if "skipped" in cells[0]:
        return cell | {"skipped": cells[0]["skipped"]}
    return cell | {
        "ms": np.max([each["ms"] for each in cells], axis=0).tolist(),
        "interface_bytes": max(each["interface_bytes"] for each in cells),
        "counted_bytes": max(each["counted_bytes"] for each in cells),
        "formula_bytes": formula_bytes(cell["values"], size, cell["exchange"]),
    }


def _print_table(cells: Sequence[dict]) -> None:
    table = rich.table.Table("gradients", "hosts", "rate", "engine", "exchange")
    table.box = rich.box.MARKDOWN
    headings = ("n", "ms", "quartiles", "MB", "bits/parameter", "to formula", "to wire", "speed-up")
    for heading in headings:
        table.add_column(heading, justify="right")
    for cell in sorted(cells, key=lambda cell: NETS.index(cell["gradients"])):
        place = [cell[name] for name in ("gradients", "hosts", "rate", "engine", "exchange")]
        table.add_row(*map(str, place), *_figures(cell, cells))
    rich.console.Console(width=160).print(table)
    print("- n: timed exchanges. MB, bits/parameter: what a host put on its interface.")
    print("- To formula: over the bytes of the formula. To wire: ms over those that its bytes take")
    print("  at the full bandwidth.")
    print("- Speed-up: over the float32 ring of TensorFlow in the same circumstances.")


def _figures(cell: dict, cells: Sequence[dict]) -> list[str]:
    if "skipped" in cell:
        return ["0", cell["skipped"]]
    low, median, high = np.percentile(cell["ms"], [25, 50, 75])
    sent = cell["interface_bytes"]
    bits_per_second = host_network.BITS_PER_SECOND.get(cell["rate"])
    wire = 8000 * cell["formula_bytes"] / bits_per_second if bits_per_second else None
    base = _ring_beside(cell, cells)
    return [
        str(len(cell["ms"])),
        f"{median:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{sent / 1e6:.2f}",
        f"{8 * sent / cell['values']:.2f}",
        f"{sent / cell['formula_bytes']:.3f}",
        f"{median / wire:.2f}" if wire else "",
        f"{base / median:.2f}" if base else "",
    ]


def _ring_beside(cell: dict, cells: Sequence[dict]) -> float | None:
    """Median of TensorFlow's ring where all else is equal, if it was measured."""
    same = {name: cell[name] for name in ("gradients", "hosts", "rate")}
    same |= {"engine": "collective", "exchange": RING}
    found = [c for c in cells if "ms" in c and all(c[k] == v for k, v in same.items())]
    return float(np.median(found[0]["ms"])) if found else None


def _draw(cells: Sequence[dict], path: str) -> None:
    """Bars of the medians: a row of pictures for each net, one for each group of hosts."""
    nets = [net for net in NETS if any(cell["gradients"] == net for cell in cells)]
    sizes = sorted({cell["hosts"] for cell in cells})
    figure = matplotlib.figure.Figure((4.5 * len(sizes), 3 * len(nets)), layout="constrained")
    grid = figure.subplots(len(nets), len(sizes), squeeze=False)
    for row, net in zip(grid, nets, strict=True):
        for axes, size in zip(row, sizes, strict=True):
            shown = [c for c in cells if (c["gradients"], c["hosts"]) == (net, size)]
            _draw_bars(axes, [c for c in shown if c["engine"] == shown[0]["engine"]])
            axes.set(title=f"{net}, {size} hosts", ylabel="ms per exchange", yscale="log")
    grid[0][0].legend(fontsize="small")
    report.save_figure(figure, path)


def _draw_bars(axes, cells: Sequence[dict]) -> None:
    rates = [rate for rate in host_network.RATES if any(cell["rate"] == rate for cell in cells)]
    kinds = [kind for kind in EXCHANGES if any(cell["exchange"] == kind for cell in cells)]
    width = 0.8 / len(kinds)
    for i, kind in enumerate(kinds):
        medians = [
            np.median(c["ms"]) if "ms" in c else np.nan
            for rate in rates
            for c in cells
            if (c["rate"], c["exchange"]) == (rate, kind)
        ]
        axes.bar(np.arange(len(rates)) + i * width - 0.4, medians, width, align="edge", label=kind)
    axes.set_xticks(range(len(rates)), rates)
    shortest = min((np.median(c["ms"]) for c in cells if "ms" in c), default=1.0)
    axes.set_ylim(bottom=shortest / 3)  # of a logarithmic axis, which has no zero


if __name__ == "__main__":
    app.run(main, functools.partial(flag_table.define, _Options))
