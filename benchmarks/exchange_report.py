"""Figures of benchmarks/exchange_benchmark.py as tables and as a picture.

Joins several runs into OUTPUT.json and OUTPUT.png; a later run replaces cells of earlier ones:

python -m benchmarks.exchange_report OUTPUT JSON...
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table

from benchmarks import host_network, report
from benchmarks.exchange_formula import RING
from benchmarks.exchange_worker import EXCHANGES
from benchmarks.gradients import NETS
from inception.results import pictures

_PLACE = ("gradients", "hosts", "rate", "engine", "exchange")
_FIGURES = (
    *("n", "ms", "quartiles", "CPU ns", "wake-ups", "bits sent", "received", "to formula"),
    *("to wire", "to float32", "to ring"),
)
_OF_SERVERS = ("MB sent", "MB received", "to formula", "CPU ms", "busy", "ns per value and worker")


def main() -> None:
    """Joins, prints and draws the figures of files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", metavar="OUTPUT")
    parser.add_argument("paths", metavar="JSON", nargs="+")
    given = parser.parse_args()
    output = given.output
    runs = [_read(path) for path in given.paths]
    cells = {
        tuple(cell[name] for name in (*_PLACE, "servers")): cell
        for run in runs
        for cell in run["cells"]
    }
    environments = [run["environment"] for run in runs]
    found = list(cells.values())
    report.write_json(f"{output}.json", {"environments": environments, "cells": found})
    print_tables(found)
    draw(found, f"{output}.png")


def _read(path: str) -> dict:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"{path}: cannot be read: {error.strerror}") from None


def print_tables(cells: Sequence[dict]) -> None:
    """Prints a table of all cells and one of the parameter servers, as Markdown."""
    ordered = sorted(cells, key=_order)
    console = rich.console.Console(width=220)
    console.print(_table(_FIGURES, [(cell, _figures(cell, cells)) for cell in ordered]))
    print("- n: timed exchanges. CPU ns: of a worker, per value. Wake-ups: how often one of its")
    print("  threads slept in an exchange and the agreement on another.")
    print("- Bits sent, received: per parameter, on a worker's interface.")
    print("- To formula: measured bytes / bytes of the formula, in the direction with more.")
    print("- To wire: ms / the ms that the formula's bytes need on the busiest cable at its full")
    print("  bandwidth. To float32, to ring: the ms of float32 under the same conditions, or of")
    print("  TensorFlow's float32 ring, / the ms of this exchange.")
    served = [cell for cell in ordered if cell["servers"] and "ms" in cell]
    if served:
        console.print(_table(_OF_SERVERS, [(cell, _server_figures(cell)) for cell in served]))
        print("- MB: of the busiest ps. CPU ms: of all ps per exchange; busy: CPU ms / elapsed ms.")


def draw(cells: Sequence[dict], path: str) -> None:
    """Draws the medians as bars: one row per net, one column per group of hosts."""
    nets = [net for net in NETS if any(cell["gradients"] == net for cell in cells)]
    groups = sorted({(cell["hosts"], _engine(cell)) for cell in cells})
    figure = matplotlib.figure.Figure((3.5 * len(groups), 3 * len(nets)), layout="constrained")
    grid = figure.subplots(len(nets), len(groups), squeeze=False, sharey="row")
    for row, net in zip(grid, nets, strict=True):
        of_net = [cell for cell in cells if cell["gradients"] == net]
        for axes, (size, engine) in zip(row, groups, strict=True):
            _draw_bars(axes, [c for c in of_net if (c["hosts"], _engine(c)) == (size, engine)])
            axes.set(title=f"{net}, {size} workers, {engine}", yscale="log")
        row[0].set_ylabel("ms per exchange")
        shortest = min((np.median(c["ms"]) for c in of_net if "ms" in c), default=1.0)
        row[0].set_ylim(bottom=shortest / 3)  # a logarithmic axis has no zero
    grid[0][0].legend(fontsize="small")
    pictures.save(figure, path)


def _draw_bars(axes, cells: Sequence[dict]) -> None:
    rates = [rate for rate in host_network.RATES if any(cell["rate"] == rate for cell in cells)]
    kinds = [kind for kind in EXCHANGES if any(cell["exchange"] == kind for cell in cells)]
    width = 0.8 / max(1, len(kinds))  # a group may lack a net
    for i, kind in enumerate(kinds):
        medians = [
            np.median(c["ms"]) if "ms" in c else np.nan
            for rate in rates
            for c in cells
            if (c["rate"], c["exchange"]) == (rate, kind)
        ]
        color = f"C{EXCHANGES.index(kind)}"
        left = np.arange(len(rates)) + i * width - 0.4
        axes.bar(left, medians, width, align="edge", label=kind, color=color)
    axes.set_xticks(range(len(rates)), rates)


def _order(cell: dict) -> tuple:
    """Sorts by net, hosts, rate and engine; exchanges stay in the order of measuring."""
    rate = host_network.RATES.index(cell["rate"])
    return NETS.index(cell["gradients"]), cell["hosts"], rate, cell["engine"], cell["servers"]


def _table(headings: Sequence[str], rows: Sequence[tuple[dict, Sequence[str]]]) -> rich.table.Table:
    """Returns a table of figures; each row begins with the place of its cell."""
    table = rich.table.Table(*_PLACE, box=rich.box.MARKDOWN)
    for heading in headings:
        table.add_column(heading, justify="right")
    for cell, figures in rows:
        place = cell | {"engine": _engine(cell)}
        table.add_row(*(str(place[name]) for name in _PLACE), *figures)
    return table


def _engine(cell: dict) -> str:
    return f"{cell['servers']} ps" if cell["servers"] else cell["engine"]


def _figures(cell: dict, cells: Sequence[dict]) -> list[str]:
    if "skipped" in cell:
        return ["0", cell["skipped"]]
    low, median, high = np.percentile(cell["ms"], [25, 50, 75])
    sent, received = cell["interface_bytes"], cell["interface_received_bytes"]
    more = max(sent / cell["formula_bytes"], received / cell["formula_received_bytes"])
    wire = _wire_ms(cell)
    own, ring = (_beside(cell, cells, kind) for kind in ("float32", RING))
    return [
        str(len(cell["ms"])),
        f"{median:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{1e6 * cell['cpu_ms'] / cell['values']:.2f}" if "cpu_ms" in cell else "",
        f"{cell['wakeups']:.0f}" if "wakeups" in cell else "",  # older results have none
        f"{8 * sent / cell['values']:.2f}",
        f"{8 * received / cell['values']:.2f}",
        f"{more:.3f}",
        f"{median / wire:.2f}" if wire else "",
        f"{own / median:.2f}" if own else "",
        f"{ring / median:.2f}" if ring else "",
    ]


def _server_figures(cell: dict) -> list[str]:
    each = cell["hosts"] / cell["servers"]
    sent, received = cell["ps_bytes"], cell["ps_received_bytes"]
    formula_sent, formula_received = cell["formula_received_bytes"], cell["formula_bytes"]
    more = max(sent / formula_sent, received / formula_received) / each
    return [
        f"{sent / 1e6:.2f}",
        f"{received / 1e6:.2f}",
        f"{more:.3f}",
        f"{cell['ps_cpu_ms']:.1f}",
        f"{cell['ps_cpu_ms'] / np.median(cell['ms']):.2f}",
        f"{cell['ps_cpu_ns_by_value_and_worker']:.3f}",
    ]


def _wire_ms(cell: dict) -> float | None:
    bits_per_second = host_network.BITS_PER_SECOND.get(cell["rate"])
    return 8000 * cell["formula_busiest_bytes"] / bits_per_second if bits_per_second else None


def _beside(cell: dict, cells: Sequence[dict], kind: str) -> float | None:
    """Returns the median of another kind of exchange under the same conditions, if measured."""
    same = {name: cell[name] for name in ("gradients", "hosts", "rate")}
    if kind == RING:
        same |= {"engine": "collective"}
    else:
        same |= {name: cell[name] for name in ("engine", "servers")}
    same |= {"exchange": kind}
    found = [c for c in cells if "ms" in c and all(c[k] == v for k, v in same.items())]
    return float(np.median(found[0]["ms"])) if found else None


if __name__ == "__main__":
    main()
