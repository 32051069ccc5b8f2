"""How fast would a training be on a cluster that is not here?

Predicts images a second from the time that a device computes, the codec's time and the bytes on the
network, for each number of workers; and up to which bandwidth ternary gradients pay. A cluster is
one of the presets or a JSON file (benchmarks/performance/cluster.py). With --validate it predicts
exchanges that were measured, and shows how far it is off.

python -m benchmarks.performance_model --cluster=paper_ethernet --png=figure.png
python -m benchmarks.performance_model --validate=benchmarks/results/2026-11-21-exchange.json
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from benchmarks import report
from benchmarks.performance import cluster as clusters
from benchmarks.performance import figures, validation
from benchmarks.performance.cluster import Cluster, Load
from benchmarks.performance.step_time import (
    EXCHANGES,
    TOPOLOGIES,
    Route,
    speed_up,
    step_seconds,
    with_compute,
)
from inception import app
from inception.flags import table
from inception.flags.table import NAMES, TEXT, at_least, flag, one_of
from slim.nets import catalog, nets_factory

_BANDWIDTHS = tuple(float(b) for b in np.geomspace(0.1, 400, 73))  # Gbit/s
_CLASSES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    cluster: str = flag(
        "Distributed",
        TEXT,
        "paper_ethernet",
        f"JSON file, or one of {', '.join(clusters.presets())}",
    )
    nets: tuple[str, ...] = flag("Training", NAMES, (), "nets; not set = all that the file names")
    max_workers: int = flag("Distributed", at_least(2), 512, "workers at most", "workers")
    topology: str = flag("Distributed", one_of(*TOPOLOGIES), "two_shot", "way of the gradients")
    servers: int = flag("Distributed", at_least(1), 1, "parameter servers, if they are the way")
    validate: tuple[str, ...] = flag(
        "Data", NAMES, (), "JSON files of exchange_benchmark to compare predictions with"
    )
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for images a second by workers")
    bandwidth_png: str = flag("Runtime", TEXT, "", "PNG file for the speed-up by bandwidth")


def main(values: FlagValues) -> None:
    """Predicts, or compares predictions with measurements."""
    options = table.read(_Options, values)
    if options.validate:
        _validate(options)
    else:
        _predict(options)


def _predict(options: _Options) -> None:
    try:
        cluster = clusters.read(options.cluster)
    except ValueError as error:
        raise table.refuse("cluster", options.cluster, str(error)) from None
    route = Route(options.topology, options.servers)
    nets = {net: _count_values(net) for net in _nets(options, cluster)}
    loads = {net: _load(options, cluster, net, values) for net, values in nets.items()}
    throughput = {
        net: _throughput(options, cluster, route, values, loads[net])
        for net, values in nets.items()
    }
    speed_ups = {
        net: _by_bandwidth(values, loads[net], cluster, options.max_workers, route)
        for net, values in nets.items()
    }
    published = {
        net: _compare(nets[net], load, cluster, options.topology, route)
        for net, load in loads.items()
        if load.speed_up
    }
    _show(throughput, loads, published)
    for net, found in speed_ups.items():
        pays = figures.where_it_pays(_BANDWIDTHS, found)
        print(f"- {net}, {options.max_workers} workers: ternary gradients save 5 % or more {pays}")
    if options.json:
        by_bandwidth = {"Gbit/s": _BANDWIDTHS, **speed_ups}
        found = {"images/s": throughput, "speed-up": by_bandwidth, "published": published}
        given = {"cluster": options.cluster, "topology": options.topology}
        report.write_json(options.json, {"given": given, "values": nets, **found})
    if options.png:
        figures.draw_throughput(throughput, options.png)
    if options.bandwidth_png:
        figures.draw_speed_up(_BANDWIDTHS, speed_ups, options.max_workers, options.bandwidth_png)


def _nets(options: _Options, cluster: Cluster) -> Sequence[str]:
    if not cluster.nets:
        raise table.refuse("cluster", options.cluster, "names no nets")
    for net in options.nets:
        if net not in cluster.nets:
            raise table.refuse("nets", net, f"must be of {', '.join(cluster.nets)}")
    for net in cluster.nets:
        if net not in catalog.NETS:
            known = ", ".join(catalog.NETS)
            raise table.refuse("cluster", options.cluster, f"names {net!r}; nets are {known}")
    return options.nets or list(cluster.nets)


def _count_values(net: str) -> int:
    """Returns the number of gradient values of a net for ImageNet's classes."""
    model = nets_factory.build_net(net, num_classes=_CLASSES)
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def _load(options: _Options, cluster: Cluster, net: str, values: int) -> Load:
    try:
        return with_compute(values, cluster.nets[net], cluster)
    except ValueError as error:
        raise table.refuse("cluster", options.cluster, f"{net}: {error}") from None


def _workers(options: _Options) -> list[int]:
    """Returns the powers of two up to the most workers, and these."""
    powers = [1 << i for i in range(options.max_workers.bit_length())]
    return sorted({*powers, options.max_workers})


def _throughput(
    options: _Options, cluster: Cluster, route: Route, values: int, load: Load
) -> dict[str, dict[int, float]]:
    """Returns images a second by exchange and number of workers."""
    seconds = functools.partial(step_seconds, values, load, cluster)
    return {
        exchange: {n: n * load.batch / seconds(n, exchange, route) for n in _workers(options)}
        for exchange in EXCHANGES
    }


def _compare(
    values: int, load: Load, cluster: Cluster, topology: str, route: Route
) -> dict[int, dict[str, float]]:
    """Returns the published speed-ups by workers, beside the model's with the same computing."""
    ours = lambda workers, way: speed_up(values, load, cluster, workers, way)
    return {
        n: {"published": ratio, "paper": ours(n, Route("paper")), topology: ours(n, route)}
        for n, ratio in load.speed_up.items()
    }


def _by_bandwidth(
    values: int, load: Load, cluster: Cluster, workers: int, route: Route
) -> list[float]:
    """Returns the speed-up at each of _BANDWIDTHS."""
    at = lambda gbit: dataclasses.replace(cluster, gbit_per_s=gbit)
    return [speed_up(values, load, at(gbit), workers, route) for gbit in _BANDWIDTHS]


def _show(throughput: dict, loads: dict[str, Load], published: dict) -> None:
    """Prints tables of images a second, and of published speed-ups beside the model's."""
    shown = _table("net", "workers", *(f"{e}, images/s" for e in EXCHANGES), "ternary to float32")
    for net, lines in throughput.items():
        for workers, ternary in lines["ternary"].items():
            rates = [f"{lines[exchange][workers]:,.0f}" for exchange in EXCHANGES]
            shown.add_row(net, str(workers), *rates, f"{ternary / lines['float32'][workers]:.2f}")
    console = rich.console.Console(width=120)
    console.print(shown)
    for net, load in loads.items():
        print(
            f"- {net}: a device computes {load.images_per_s:,.0f} images/s, {load.batch} in a step"
        )
    if published:
        columns = list(next(iter(next(iter(published.values())).values())))
        compared = _table("net", "workers", *columns)
        for net, by_workers in published.items():
            for workers, ratios in by_workers.items():
                compared.add_row(net, str(workers), *(f"{r:.2f}" for r in ratios.values()))
        console.print(compared)


def _table(*columns: str) -> rich.table.Table:
    shown = rich.table.Table(columns[0], box=rich.box.MARKDOWN)
    for column in columns[1:]:
        shown.add_column(column, justify="right")
    return shown


def _validate(options: _Options) -> None:
    try:
        cells = validation.read_cells(options.validate)
    except ValueError as error:
        raise table.refuse("validate", ",".join(options.validate), str(error)) from None
    share = validation.visible_share(cells)
    shown = _table("exchange", "network", "work", "predicted, ms", "measured, ms", "error")
    for cell in cells:
        times = (cell.wire_ms, cell.work_ms, cell.predicted_ms(share), cell.measured_ms)
        mark = ", fitted" if cell.fitted else ""
        error = f"{cell.error(share):+.0%}{mark}"
        shown.add_row(cell.name, *(f"{time:,.1f}" for time in times), error)
    rich.console.Console(width=120).print(shown)
    tested = [abs(cell.error(share)) for cell in cells if not cell.fitted]
    found = {
        "share of the work that the network does not hide": share,
        "cells predicted": len(tested),
        "median error": statistics.median(tested),
        "errors of 15 % and less": sum(error <= 0.15 for error in tested),
    }
    report.print_lines(found)
    if options.json:
        every = [cell._asdict() | {"predicted_ms": cell.predicted_ms(share)} for cell in cells]
        report.write_json(options.json, {**found, "cells": every})


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
