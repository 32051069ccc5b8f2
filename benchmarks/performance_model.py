"""How fast would a training be on another cluster?

Predicts images a second from the time that a device computes, the codec's time and the bytes on the
network, for each number of workers; and up to which bandwidth ternary gradients pay. A cluster is
one of the presets or a JSON file (benchmarks/performance/cluster.py). With --validate it predicts
measured exchanges, and shows its errors.

python -m benchmarks.performance_model --cluster=paper_ethernet --png=figure.png
python -m benchmarks.performance_model --validate=benchmarks/results/2026-11-21-exchange.json
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from benchmarks import report
from benchmarks.performance import cluster as clusters
from benchmarks.performance import validation
from benchmarks.performance.cluster import Load, ModeledCluster
from benchmarks.performance.step_time import (
    EXCHANGES,
    TOPOLOGIES,
    Route,
    exchange_seconds,
    speed_up,
    step_seconds,
    with_compute,
)
from inception.flags import table
from inception.flags.table import NAMES, TEXT, at_least, flag, one_of
from slim.nets import catalog, nets_factory
from terngrad.layout import EXACT, SUM_CODEC_NAMES

_BANDWIDTHS = tuple(float(b) for b in np.geomspace(0.1, 400, 73))  # Gbit/s
_CLASSES = 1000
_WITH_OWNERS = ("two_shot", "ring", "parameter_server")  # of shares of the means
_PAYS = 1.05  # below this speed-up compression is not worth having


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.PictureOptions):
    cluster: str = flag(
        "Distributed", TEXT, "paper_ethernet", f"a file, or of {', '.join(clusters.presets())}"
    )
    nets: tuple[str, ...] = flag("Training", NAMES, (), "nets; not set = all that the file names")
    max_workers: int = flag("Distributed", at_least(2), 512, "workers at most", "workers")
    topology: str = flag("Distributed", one_of(*TOPOLOGIES), "two_shot", "how gradients travel")
    servers: int = flag(
        "Distributed", at_least(1), 1, "parameter servers, with --topology=parameter_server"
    )
    sum_codec: str = flag(
        "Training", one_of(*SUM_CODEC_NAMES), EXACT, "how means travel back: exact or ternary"
    )
    validate: tuple[str, ...] = flag("Data", NAMES, (), "exchange_benchmark's files to predict")
    bandwidth_png: str = flag("Runtime", TEXT, "", "PNG file for the speed-up by bandwidth")


def main(options: _Options) -> None:
    """Predicts, or compares predictions with measurements."""
    if options.sum_codec != EXACT and options.topology not in _WITH_OWNERS:
        why = f"needs --topology={' or '.join(_WITH_OWNERS)}: others have no owners of means"
        raise table.refuse("sum_codec", options.sum_codec, why)
    if options.validate:
        _validate(options)
    else:
        _predict(options)


def _predict(options: _Options) -> None:
    try:
        cluster = clusters.read(options.cluster)
        values = {net: _count_values(net) for net in _nets(options, cluster)}
        loads = {net: _load(cluster, net, count) for net, count in values.items()}
    except table.RefusedError:
        raise
    except ValueError as error:
        raise table.refuse("cluster", options.cluster, str(error)) from None
    route = Route(options.topology, options.servers, sum_codec=options.sum_codec)
    max_workers = options.max_workers
    workers = sorted({*(1 << i for i in range(max_workers.bit_length())), max_workers})
    by_gbit = [dataclasses.replace(cluster, gbit_per_s=gbit) for gbit in _BANDWIDTHS]
    throughput, exchanges, speed_ups, published = {}, {}, {}, {}
    for net, load in loads.items():
        seconds = functools.partial(step_seconds, values[net], load, cluster)
        gain = functools.partial(speed_up, values[net], load)
        throughput[net] = {
            exchange: {n: n * load.batch / seconds(n, exchange, route) for n in workers}
            for exchange in EXCHANGES
        }
        travel = functools.partial(exchange_seconds, values[net], cluster)
        exchanges[net] = {
            exchange: {n: 1e3 * travel(n, exchange, route) for n in workers if n > 1}
            for exchange in EXCHANGES
        }
        speed_ups[net] = [gain(each, max_workers, route) for each in by_gbit]
        if load.speed_up:
            ways = {"paper": Route("paper"), options.topology: route}
            published[net] = {
                n: {"published": ratio} | {way: gain(cluster, n, ways[way]) for way in ways}
                for n, ratio in load.speed_up.items()
            }
        rate = f"{load.images_per_s:,.0f} images/s, {load.batch} in a step"
        print(f"- {net}: a device computes {rate}")
        pays = f"ternary gradients save 5 % or more {_where_it_pays(speed_ups[net])}"
        print(f"- {net}, {max_workers} workers: {pays}")
    _print(throughput, exchanges, published)
    if options.json:
        by_bandwidth = {"Gbit/s": _BANDWIDTHS, **speed_ups}
        found = {"images/s": throughput, "speed-up": by_bandwidth, "published": published}
        found["exchange, ms"] = exchanges
        given = {"cluster": options.cluster, "topology": options.topology}
        given["sum_codec"] = options.sum_codec
        report.write_json(options.json, {"given": given, "values": values, **found})
    if options.png:
        _draw_throughput(throughput, options.png)
    if options.bandwidth_png:
        _draw_speed_up(options, speed_ups)


def _nets(options: _Options, cluster: ModeledCluster) -> Sequence[str]:
    if not cluster.nets:
        raise ValueError("names no nets")
    for net in options.nets:
        if net not in cluster.nets:
            allowed = f"must be one or more of {', '.join(cluster.nets)}, separated by commas"
            raise table.refuse("nets", net, allowed)
    for net in cluster.nets:
        if net not in catalog.NETS:
            raise ValueError(f"names {net!r}; nets are {', '.join(catalog.NETS)}")
    return options.nets or list(cluster.nets)


def _count_values(net: str) -> int:
    """Returns the number of gradient values of a net for ImageNet's classes."""
    model = nets_factory.build_net(net, num_classes=_CLASSES)
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def _load(cluster: ModeledCluster, net: str, values: int) -> Load:
    try:
        return with_compute(values, cluster.nets[net], cluster)
    except ValueError as error:
        raise ValueError(f"{net}: {error}") from None


def _print(throughput: dict, exchanges: dict, published: dict) -> None:
    """Prints tables of images a second, and of published speed-ups beside the model's."""
    rows = []
    for net, lines in throughput.items():
        for workers, ternary in lines["ternary"].items():
            rates = {f"{each}, images/s": f"{lines[each][workers]:,.0f}" for each in EXCHANGES}
            ratio = {"ternary to float32": f"{ternary / lines['float32'][workers]:.2f}"}
            travel = exchanges[net]["ternary"].get(workers, 0.0)  # alone, nothing
            ratio["ternary exchange, ms"] = f"{travel:,.1f}"
            rows.append({"net": net, "workers": workers} | rates | ratio)
    report.print_table(rows)
    compared = [
        {"net": net, "workers": n} | {way: f"{ratio:.2f}" for way, ratio in ratios.items()}
        for net, by_workers in published.items()
        for n, ratios in by_workers.items()
    ]
    if compared:
        report.print_table(compared)


def _where_it_pays(speed_ups: Sequence[float]) -> str:
    """Says up to which of _BANDWIDTHS, in Gbit/s, compression pays."""
    pays = [b for b, ratio in zip(_BANDWIDTHS, speed_ups, strict=True) if ratio >= _PAYS]
    if not pays:
        return f"at no bandwidth from {min(_BANDWIDTHS):.3g} Gbit/s on"
    limit = " and beyond" if max(pays) == max(_BANDWIDTHS) else ""
    return f"up to {max(pays):.3g} Gbit/s{limit}"


def _draw_throughput(found: dict[str, dict[str, dict[int, float]]], path: str) -> None:
    with report.picture(path, len(found), 4.2, 3.6) as panels:
        for axes, (net, lines) in zip(panels, found.items(), strict=False):
            for exchange, points in lines.items():
                axes.plot(list(points), list(points.values()), marker=".", label=exchange)
            axes.set(title=net, xlabel="workers", ylabel="images/s", xscale="log", yscale="log")
            axes.legend()


def _draw_speed_up(options: _Options, found: dict[str, list[float]]) -> None:
    with report.picture(options.bandwidth_png) as (axes,):
        for net, speed_ups in found.items():
            axes.plot(_BANDWIDTHS, speed_ups, label=net)
        axes.axhline(_PAYS, color="gray", linestyle=":")
        axes.set(
            title=f"{options.max_workers} workers",
            xlabel="Gbit/s of a machine",
            ylabel="ternary to float32, images/s",
            xscale="log",
            yscale="log",
        )
        axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.legend()


def _validate(options: _Options) -> None:
    try:
        cells = validation.read_cells(options.validate)
    except ValueError as error:
        raise table.refuse("validate", ",".join(options.validate), str(error)) from None
    share = validation.visible_share(cells)
    rows = [
        {
            "exchange": cell.name,
            "network": f"{cell.wire_ms:,.1f}",
            "work": f"{cell.work_ms:,.1f}",
            "predicted, ms": f"{cell.predicted_ms(share):,.1f}",
            "measured, ms": f"{cell.measured_ms:,.1f}",
            "error": f"{cell.error(share):+.0%}{', fitted' if cell.fitted else ''}",
        }
        for cell in cells
    ]
    report.print_table(rows)
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
    report.run(main, _Options)
