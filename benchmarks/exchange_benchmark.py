"""How long does an exchange of gradients between hosts take, and how many bytes does it send?

Hosts are network namespaces on this machine (network.sh; needs root), with one thread per
operation. For each engine, number of hosts and bandwidth: the engine's own all-reduce of float32,
and the suite's exchanges of float32, float16 and ternary codes, from gradients to their mean.
"Ternary both ways" sends means back as codes, too (--sum_codec=ternary). Parameter servers
(--engines=parameter_server) have their own hosts beside the workers'.

python -m benchmarks.exchange_benchmark --json=figures.json --png=figures.png
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks import host_network, report
from benchmarks.exchange_worker import NETS, Workload
from benchmarks.host import ENGINES
from benchmarks.host_network import BITS_PER_SECOND, RATES, HostNetwork
from benchmarks.performance.step_time import Route, busiest_link
from benchmarks.performance.traffic import BOTH_WAYS, RING, CodeBits, packed_bits, server_bits
from benchmarks.report import counts, names_flag
from inception.flags.table import flag, number
from terngrad.layout import EXACT
from terngrad.planes import plane_count

_START_SECS = 120.0  # for the start of the processes and their first exchanges
_FORMULA = ("formula_bytes", "formula_received_bytes", "formula_busiest_bytes")
_PLACE = ("gradients", "hosts", "rate", "engine", "exchange")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.PictureOptions, Workload):
    hosts: tuple[int, ...] = flag("Distributed", counts(99, 2), (2, 4, 8), "numbers of workers")
    rates: tuple[str, ...] = names_flag("Distributed", RATES, "bandwidths")
    engines: tuple[str, ...] = names_flag("Distributed", ENGINES, "engines", ENGINES[:1])
    servers: tuple[int, ...] = flag("Distributed", counts(9), (1,), "numbers of parameter servers")
    cell_timeout_secs: float = flag("Runtime", number(), 400.0, "time-out of a cell", "seconds")


def main(options: _Options) -> None:
    """Measures each group of hosts, then prints and draws all figures."""
    cells: list[dict] = []
    for size, engine in itertools.product(options.hosts, options.engines):
        for servers in options.servers if engine == "parameter_server" else (0,):
            with host_network.network(size + servers) as network:
                for rate in options.rates:
                    network.shape(rate)
                    group = {"hosts": size, "servers": servers, "rate": rate, "engine": engine}
                    print(*(f"{k} {v}" for k, v in group.items()), sep=", ", flush=True)
                    timeout = options.cell_timeout_secs
                    found = measure(options, network, engine, servers, timeout)
                    cells += [group | cell for cell in found]
                    if options.json:  # now, so that a failure does not lose hours of measuring
                        content = {"environment": report.environment(), "cells": cells}
                        report.write_json(options.json, content)
    _print_tables(cells)
    _draw(cells, options.png)
    report.conclude(options, {"cells": cells})


def measure(
    workload: Workload, network: HostNetwork, engine: str, servers: int, cell_timeout: float
) -> list[dict]:
    """Returns the cells of one group of hosts, of which the last `servers` are ps."""
    size = network.size - servers
    if servers:
        exchanges = tuple(kind for kind in workload.exchanges if kind not in (RING, BOTH_WAYS))
        workload = dataclasses.replace(workload, exchanges=exchanges)
    command = report.module("benchmarks.exchange_worker")
    command += report.shared_flags(workload, Workload)
    timeout = _START_SECS + cell_timeout * len(workload.gradients) * len(workload.exchanges)
    with host_network.exchange_services(network, engine, size, servers) as (flags, processes):
        command += [*flags, f"--ps_processes={','.join(map(str, processes))}"]
        if engine == "mpi":
            found = network.collect_with_mpi(command, timeout)
        else:
            found = network.collect([[*command, f"--task_id={i}"] for i in range(size)], timeout)
    return [_joined(cells, size, servers, engine) for cells in zip(*found, strict=True)]


def _joined(cells: Sequence[dict], size: int, servers: int, engine: str) -> dict:
    """Joins the cells of all hosts: an exchange takes as long as on the slowest host."""
    cell = {name: cells[0][name] for name in ("gradients", "exchange", "values")}
    if "skipped" in cells[0]:
        return cell | {"skipped": cells[0]["skipped"]}
    bits = packed_bits if engine.startswith("sockets") else plane_count
    formula = formula_bytes(cell["values"], size, cell["exchange"], servers, bits)
    cell["ms"] = np.max([each["ms"] for each in cells], axis=0).tolist()
    cell["cpu_ms"] = 1000 * max(each["cpu"][0] for each in cells)
    cell["wakeups"] = max(each["wakeups"][0] for each in cells)
    for counter in ("interface", "counted"):
        sent, received = np.max([each[counter] for each in cells], axis=0).tolist()
        cell |= {f"{counter}_bytes": sent, f"{counter}_received_bytes": received}
    cell |= dict(zip(_FORMULA, formula, strict=True))
    if servers:
        cell |= _of_servers(cells[0]["servers"], cell["values"] * size)
    return cell


def formula_bytes(
    values: int, size: int, exchange: str, servers: int = 0, code_bits: CodeBits = plane_count
) -> tuple[float, float, float]:
    """Returns the bytes that a worker sends and receives, and those on the busiest link."""
    topology = "parameter_server" if servers else "two_shot"
    route = Route(topology, servers, sum_codec="ternary" if exchange == BOTH_WAYS else EXACT)
    busiest, _ = busiest_link(values, size, 1, size, exchange, route, code_bits)
    if not servers:
        return busiest, busiest, busiest
    sent, received = (values * bits / 8 for bits in server_bits(exchange, size))
    return sent, received, busiest


def _of_servers(counted: Sequence[Sequence[float]], values: int) -> dict[str, float]:
    """Returns bytes of the busiest ps and CPU time of all ps, also per pushed value."""
    sent, received, *_ = np.max(counted, axis=0).tolist()
    seconds = sum(cpu_seconds for _, _, cpu_seconds, _ in counted)
    return {
        "ps_bytes": sent,
        "ps_received_bytes": received,
        "ps_cpu_ms": 1000 * seconds,
        "ps_cpu_ns_by_value_and_worker": 1e9 * seconds / values,
    }


def _print_tables(cells: Sequence[dict]) -> None:
    """Prints a table of all cells and one of the parameter servers, as Markdown."""
    ordered = sorted(cells, key=_order)
    report.print_table([_place(cell) | _figures(cell, cells) for cell in ordered], texts=5)
    print("- n: timed exchanges. CPU ns: of a worker, per value. Wake-ups: how often one of its")
    print("  threads slept in an exchange and the agreement on another.")
    print("- Bits sent, received: per parameter, on a worker's interface.")
    print("- To formula: measured bytes / bytes of the formula, in the direction with more.")
    print("- To wire: ms / the ms that the formula's bytes need on the busiest link at its full")
    print("  bandwidth. To float32, to ring: the ms of float32 under the same conditions, or of")
    print("  the engine's own float32 ring, / the ms of this exchange.")
    served = [cell for cell in ordered if cell["servers"] and "ms" in cell]
    if served:
        report.print_table([_place(cell) | _server_figures(cell) for cell in served], texts=5)
        print("- MB: of the busiest ps. CPU ms: of all ps per exchange; busy: CPU ms / elapsed ms.")


def _order(cell: dict) -> tuple:
    """Sorts by net, hosts, rate and engine; exchanges stay in the order of measuring."""
    rate = RATES.index(cell["rate"])
    return NETS.index(cell["gradients"]), cell["hosts"], rate, cell["engine"], cell["servers"]


def _place(cell: dict) -> dict[str, object]:
    engine = f"{cell['servers']} ps" if cell["servers"] else cell["engine"]
    return {name: cell[name] for name in _PLACE} | {"engine": engine}


def _figures(cell: dict, cells: Sequence[dict]) -> dict[str, object]:
    if "skipped" in cell:
        return {"n": 0, "ms": cell["skipped"]}
    ms, values = np.median(cell["ms"]), cell["values"]
    sent, received = cell["interface_bytes"], cell["interface_received_bytes"]
    more = max(sent / cell["formula_bytes"], received / cell["formula_received_bytes"])
    bandwidth = BITS_PER_SECOND.get(cell["rate"])
    own, ring = (_beside(cell, cells, kind) for kind in ("float32", RING))
    return {
        "n": len(cell["ms"]),
        **report.summary("ms", cell["ms"]),
        "CPU ns": f"{1e6 * cell['cpu_ms'] / values:.2f}",
        "wake-ups": f"{cell['wakeups']:.0f}",
        "bits sent": f"{8 * sent / values:.2f}",
        "received": f"{8 * received / values:.2f}",
        "to formula": f"{more:.3f}",
        "to wire": f"{ms * bandwidth / 8000 / cell['formula_busiest_bytes']:.2f}"
        if bandwidth
        else "",
        "to float32": f"{own / ms:.2f}" if own else "",
        "to ring": f"{ring / ms:.2f}" if ring else "",
    }


def _server_figures(cell: dict) -> dict[str, str]:
    each = cell["hosts"] / cell["servers"]
    sent, received = cell["ps_bytes"], cell["ps_received_bytes"]
    more = max(sent / cell["formula_received_bytes"], received / cell["formula_bytes"]) / each
    return {
        "MB sent": f"{sent / 1e6:.2f}",
        "MB received": f"{received / 1e6:.2f}",
        "to formula": f"{more:.3f}",
        "CPU ms": f"{cell['ps_cpu_ms']:.1f}",
        "busy": f"{cell['ps_cpu_ms'] / np.median(cell['ms']):.2f}",
        "ns per value and worker": f"{cell['ps_cpu_ns_by_value_and_worker']:.3f}",
    }


def _beside(cell: dict, cells: Sequence[dict], kind: str) -> float | None:
    """Returns the median of another kind of exchange under the same conditions, if measured."""
    wanted = cell | {"exchange": kind}
    same = lambda c: all(c[name] == wanted[name] for name in (*_PLACE, "servers"))
    found = [c for c in cells if "ms" in c and same(c)]
    return float(np.median(found[0]["ms"])) if found else None


def _draw(cells: Sequence[dict], path: str) -> None:
    """Draws the cells as bars: a panel for each net and number of hosts."""
    panels: dict[str, dict[str, Sequence[float]]] = {}
    for cell in sorted((cell for cell in cells if "ms" in cell), key=_order):
        bars = panels.setdefault(f"{cell['gradients']}, {cell['hosts']} workers", {})
        bars[f"{cell['rate']}, {_place(cell)['engine']}, {cell['exchange']}"] = cell["ms"]
    report.draw_bars(path, panels, "ms per exchange")


if __name__ == "__main__":
    report.run(main, _Options)
