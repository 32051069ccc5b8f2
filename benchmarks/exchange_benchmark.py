"""How long does an exchange of gradients between hosts take, and how many bytes does it send?

Hosts are network namespaces on this machine (network.sh; needs root), with one thread per
operation. For each engine, number of hosts and bandwidth: the engine's own all-reduce of float32,
and the suite's exchanges of float32, float16 and ternary codes, from gradients to their mean.
Parameter servers (--engines=parameter_server) have their own hosts beside the workers'.

python -m benchmarks.exchange_benchmark --json=figures.json --png=figures.png
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Sequence

import numpy as np
from absl.flags import FlagValues

from benchmarks import exchange_report, host_network, report
from benchmarks.choices import some_of
from benchmarks.exchange_formula import RING, all_reduce_traffic, packed_bits, server_traffic
from benchmarks.exchange_worker import EXCHANGES
from benchmarks.gradients import NETS
from benchmarks.host import ENGINES
from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag, number
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS
from terngrad.planes import plane_count

_THREADS = ("--num_intra_threads=1", "--num_inter_threads=2")
_DEFAULT_ENGINES = ("sockets", "collective")  # the default all-reduce, and TensorFlow's own
_START_SECS = 120.0  # for the start of the processes and their first exchanges


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    hosts: tuple[str, ...] = flag(
        "Distributed", some_of(*map(str, range(2, 100))), ("2", "4", "8"), "numbers of workers"
    )
    rates: tuple[str, ...] = flag(
        "Distributed",
        some_of(*host_network.RATES),
        host_network.RATES,
        "bandwidths, in the notation of tc",
    )
    engines: tuple[str, ...] = flag(
        "Distributed", some_of(*ENGINES), _DEFAULT_ENGINES, f"engines: {', '.join(ENGINES)}"
    )
    servers: tuple[str, ...] = flag(
        "Distributed", some_of(*map(str, range(1, 10))), ("1",), "numbers of parameter servers"
    )
    gradients: tuple[str, ...] = flag(
        "Training", some_of(*NETS), NETS, "nets whose gradients are exchanged"
    )
    exchanges: tuple[str, ...] = flag(
        "Training", some_of(*EXCHANGES), EXCHANGES, "kinds of exchange"
    )
    bucket_elements: int = flag(
        "Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "values per bucket"
    )
    rounds: int = flag("Runtime", at_least(1), 11, "maximum of timed exchanges per cell")
    cell_secs: float = flag("Runtime", number(), 15.0, "end a cell after this long", "seconds")
    cell_timeout_secs: float = flag("Runtime", number(), 400.0, "time-out of a cell", "seconds")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")


def main(values: FlagValues) -> None:
    """Measures each group of hosts, then prints and draws all figures."""
    options = table.read(_Options, values)
    cells: list[dict] = []
    for size, (engine, servers) in itertools.product(map(int, options.hosts), _engines(options)):
        with host_network.network(size + servers) as network:
            for rate in options.rates:
                network.shape(rate)
                group = {"hosts": size, "servers": servers, "rate": rate, "engine": engine}
                print(", ".join(f"{name} {value}" for name, value in group.items()), flush=True)
                cells += [group | cell for cell in _measure(options, network, engine, servers)]
                if options.json:  # now, so that a failure does not lose hours of measuring
                    content = {"environment": report.environment(), "cells": cells}
                    report.write_json(options.json, content)
    exchange_report.print_tables(cells)
    if options.png:
        exchange_report.draw(cells, options.png)


def _engines(options: _Options) -> list[tuple[str, int]]:
    """Returns each engine with its number of ps."""
    by_servers = [("parameter_server", int(servers)) for servers in options.servers]
    return [
        entry
        for engine in options.engines
        for entry in (by_servers if engine == "parameter_server" else [(engine, 0)])
    ]


def _measure(
    options: _Options, network: host_network.Network, engine: str, servers: int
) -> list[dict]:
    """Returns the cells of one group of hosts; the last `servers` hosts are ps."""
    exchanges = [kind for kind in options.exchanges if kind != RING or not servers]
    command = [
        *(sys.executable, "-m", "benchmarks.exchange_worker", f"--engine={engine}", *_THREADS),
        f"--gradients={','.join(options.gradients)}",
        f"--exchanges={','.join(exchanges)}",
        f"--interface={host_network.INTERFACE}",
        f"--bucket_elements={options.bucket_elements}",
        f"--rounds={options.rounds}",
        f"--cell_secs={options.cell_secs}",
    ]
    size = network.size - servers
    count = len(options.gradients) * len(exchanges)
    timeout = _START_SECS + count * options.cell_timeout_secs
    if engine == "mpi":
        found = network.collect_with_mpi(command, timeout)
    else:
        command.append(f"--worker_hosts={','.join(network.addresses[:size])}")
        with host_network.meeting(network, engine, servers, _THREADS) as (flags, processes):
            if servers:
                flags = [*flags, f"--ps_processes={','.join(map(str, processes))}"]
            each = [[*command, *flags, f"--task_id={i}"] for i in range(size)]
            found = network.collect(each, timeout)
    return [_joined(cells, size, servers, engine) for cells in zip(*found, strict=True)]


def _joined(cells: Sequence[dict], size: int, servers: int, engine: str) -> dict:
    """Joins the cells of all hosts: an exchange takes as long as on the slowest host."""
    cell = {name: cells[0][name] for name in ("gradients", "exchange", "values")}
    if "skipped" in cells[0]:
        return cell | {"skipped": cells[0]["skipped"]}
    workload = cell["values"], size, cell["exchange"]
    bits = packed_bits if engine.startswith("sockets") else plane_count
    traffic = server_traffic(*workload, servers) if servers else all_reduce_traffic(*workload, bits)
    cell["ms"] = np.max([each["ms"] for each in cells], axis=0).tolist()
    cell["cpu_ms"] = 1000 * max(each["cpu"][0] for each in cells)
    cell["wakeups"] = max(each["wakeups"][0] for each in cells)
    for counter in ("interface", "counted"):
        sent, received = np.max([each[counter] for each in cells], axis=0).tolist()
        cell |= {f"{counter}_bytes": sent, f"{counter}_received_bytes": received}
    cell |= {"formula_bytes": traffic.sent, "formula_received_bytes": traffic.received}
    cell["formula_busiest_bytes"] = traffic.busiest
    if servers:
        cell |= _of_servers(cells[0]["servers"], cell["values"] * size)
    return cell


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


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
