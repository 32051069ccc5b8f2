"""One host of benchmarks/exchange_benchmark.py: exchanges gradients, and writes down the cells.

A cell tells what was exchanged, milliseconds of each exchange, bytes that one exchange put on the
network interface, and bytes that the exchange itself counted.
"""

import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from absl.flags import FlagValues

from benchmarks.gradients import NETS, shapes_of
from benchmarks.host import HostOptions, connect, interface_bytes, write_cells
from inception import app, flag_table, runtime
from inception.flag_table import NAMES, at_least, flag, number
from terngrad.codecs.factory import make_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.two_shot import Transport, TwoShotExchange
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS, Policy, make_layout
from terngrad.ops.choice import choose_kernels
from terngrad.ops.kernels import Kernels
from terngrad.training.step import exchange_gradients

POLICIES = {
    "float32": Policy(),
    "float16": Policy(grad_bits=16),
    "ternary": Policy(grad_bits=1, clip_factor=2.5),
}
RING = "float32 ring"  # of the engine itself, without the suite
EXCHANGES = (RING, *POLICIES)

_CPU = "/CPU:0"
_COPIES = 6  # of its gradients that a host of a float exchange may hold at once
_SPREAD = 0.01  # of the gradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(HostOptions):
    """The flags of one host."""

    gradients: tuple[str, ...] = flag("Training", NAMES, NETS, "nets whose gradients are exchanged")
    exchanges: tuple[str, ...] = flag("Training", NAMES, EXCHANGES, "kinds of exchange")
    bucket_elements: int = flag("Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "of a bucket")
    rounds: int = flag("Runtime", at_least(1), 11, "timed exchanges of a cell at most")
    cell_secs: float = flag("Runtime", number(), 15.0, "after which a cell ends", "seconds")


Run = Callable[[tf.Tensor], Sequence[tf.Tensor]]  # step -> mean gradients


class Host(NamedTuple):
    """What one host needs for all its cells."""

    options: Options
    transport: Transport
    kernels: Kernels


def main(values: FlagValues) -> None:
    """Measures cell after cell."""
    options = flag_table.read(Options, values)
    runtime.configure(
        intra_threads=options.num_intra_threads,
        inter_threads=options.num_inter_threads,
        deterministic=False,
        log_placement=False,
    )
    host = Host(options, connect(options), choose_kernels("", "", on_gpu=False)[0])
    cells = []
    for net in options.gradients:
        gradients = _gradients(net, host.transport.rank)
        for kind in options.exchanges:
            cell = {"gradients": net, "exchange": kind}
            cells.append(cell | _measure(host, net, kind, gradients))
    write_cells(cells, options, host.transport.rank)


def _gradients(net: str, rank: int) -> dict[str, tf.Variable]:
    return {
        name: tf.Variable(_SPREAD * tf.random.stateless_normal(shape, [rank, i]))
        for i, (name, shape) in enumerate(shapes_of(net).items())
    }


def _measure(host: Host, net: str, kind: str, gradients: Mapping[str, tf.Variable]) -> dict:
    """The figures of a cell, or why there are none."""
    size = sum(math.prod(v.shape) for v in gradients.values())
    needed = 4 * size * _COPIES * host.transport.size
    if kind != "ternary" and needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return {"values": size, "skipped": f"may need {needed / 1e9:.0f} GB of this machine"}
    exchange = TwoShotExchange(host.transport, 1, host.kernels)
    run = (
        _ring(host.transport, net, gradients)
        if kind == RING
        else _exchanger(host, kind, gradients, exchange)
    )
    _timed(run, 0)  # connects
    took: list[float] = []
    _is_over(host, took)
    sent, counted = interface_bytes(host.options.interface), int(exchange.bytes_sent)
    while not _is_over(host, took):
        took.append(_timed(run, len(took) + 1))
    sent = interface_bytes(host.options.interface) - sent
    counted = int(exchange.bytes_sent) - counted
    return {
        "values": size,
        "ms": [1000 * seconds for seconds in took],
        "interface_bytes": sent / len(took),
        "counted_bytes": counted / len(took),
    }


def _timed(run: Run, step: int) -> float:
    begin = time.perf_counter()
    run(tf.constant(step, tf.int64))
    return time.perf_counter() - begin


def _is_over(host: Host, took: Sequence[float]) -> bool:
    """Whether a cell has its rounds, or its time is over; all hosts meet here and answer alike."""
    spent = tf.constant([math.fsum(took)])
    (longest,) = host.transport.all_reduce(spent, "Max", "benchmark/time").numpy()
    return len(took) == host.options.rounds or bool(took and longest > host.options.cell_secs)


def _exchanger(
    host: Host, kind: str, gradients: Mapping[str, tf.Variable], exchange: TwoShotExchange
) -> Run:
    """The suite's own path, from gradients to their mean."""
    shapes = [v.shape for v in gradients.values()]
    layout = make_layout(list(gradients), shapes, POLICIES[kind], host.options.bucket_elements)
    codecs = make_codecs(layout, host.kernels)

    @tf.function(autograph=False)
    def run(step: tf.Tensor) -> list[tf.Tensor]:
        values = [v.read_value() for v in gradients.values()]
        key = DrawKey(tf.constant(1, tf.uint64), step, tf.constant(exchange.first_node))
        return exchange_gradients([values], codecs, exchange, [key], [_CPU]).means

    return run


def _ring(transport: Transport, net: str, gradients: Mapping[str, tf.Variable]) -> Run:
    """The engine's own all-reduce of float32, variable by variable, the last layer's first."""

    @tf.function(autograph=False)
    def run(step: tf.Tensor) -> list[tf.Tensor]:
        del step
        return [
            transport.all_reduce(gradients[name].read_value(), "Add", f"{net}/{name}")
            for name in reversed(gradients)
        ]

    return run


if __name__ == "__main__":
    app.run(main, functools.partial(flag_table.define, Options))
