"""One host of benchmarks/exchange_benchmark.py: exchanges gradients and writes the cells.

A cell has the kind of exchange, the milliseconds of each exchange, the bytes per exchange on the
network interface and by the exchange's own count, the CPU seconds, how often a thread was woken,
and the bytes and CPU seconds of each ps.
"""

import dataclasses
import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks import report, timing
from benchmarks.host import HostOptions, counters, cpu_seconds, joined, write_cells
from benchmarks.performance.traffic import BOTH_WAYS, FLOAT_BITS, RING
from benchmarks.report import names_flag
from inception.flags import table
from inception.flags.table import NAMES, at_least, flag, number
from slim.nets import nets_factory
from terngrad.codecs.factory import make_codecs
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import Exchange
from terngrad.exchange.sockets import SocketTransport
from terngrad.exchange.two_shot import Transport
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS, Policy, make_layout
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training.reduction import Reduction
from terngrad.training.runtime import choose_kernels

POLICIES = {
    "float32": Policy(),
    "float16": Policy(grad_bits=16),
    "ternary": Policy(grad_bits=1, clip_factor=2.5),
    BOTH_WAYS: Policy(grad_bits=1, clip_factor=2.5, sum_codec="ternary"),
}
EXCHANGES = (RING, *POLICIES)

_CPU = "/CPU:0"
_COPIES = 6  # a host may hold this many copies of its gradients in a float exchange
_SPREAD = 0.01  # standard deviation of the gradients

_CIFAR10 = ("lenet_slim", "cifar10_alexnet")  # nets of slim with ten classes
_KERNELS = {
    # In one column (arXiv 1404.5997: 61.1 million parameters).
    "alexnet": (
        *((11, 11, 3, 64), (5, 5, 64, 192), (3, 3, 192, 384), (3, 3, 384, 256), (3, 3, 256, 256)),
        *((6 * 6 * 256, 4096), (4096, 4096), (4096, 1000)),
    ),
    # arXiv 1409.1556, table 1: 132.9 million.
    "vgg_a": (
        *((3, 3, 3, 64), (3, 3, 64, 128), (3, 3, 128, 256), (3, 3, 256, 256), (3, 3, 256, 512)),
        *((3, 3, 512, 512), (3, 3, 512, 512), (3, 3, 512, 512)),
        *((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)),
    ),
}
NETS = (*_CIFAR10, *_KERNELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(table.Checked):
    """The flags of the exchanged gradients and the number of exchanges."""

    gradients: tuple[str, ...] = names_flag("Training", NETS, "nets whose gradients are exchanged")
    exchanges: tuple[str, ...] = names_flag("Training", EXCHANGES, "kinds of exchange")
    bucket_elements: int = flag(
        "Training", at_least(1), DEFAULT_BUCKET_ELEMENTS, "values in a bucket"
    )
    rounds: int = flag("Runtime", at_least(1), 11, "maximum of timed exchanges per cell")
    cell_secs: float = flag("Runtime", number(), 15.0, "end a cell after this long", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(HostOptions, Workload):
    ps_processes: tuple[str, ...] = flag("Distributed", NAMES, (), "process id of each ps, if any")


_Run = Callable[[], Sequence[tf.Tensor]]  # -> mean gradients


class _Host(NamedTuple):
    """The state of one host for all its cells."""

    options: _Options
    connection: Connection
    kernels: GradientKernels
    step: tf.Variable  # counts the exchanges


def shapes_of(net: str) -> Mapping[str, tuple[int, ...]]:
    """Returns the shapes of the variables of one of NETS by name, in the order of the layers."""
    if net in _CIFAR10:
        model = nets_factory.build_net(net, num_classes=10)
        return {nets_factory.variable_name(v): tuple(v.shape) for v in model.trainable_variables}
    shapes = {}
    for i, kernel in enumerate(_KERNELS[net]):
        shapes |= {f"layer{i}/kernel": kernel, f"layer{i}/bias": kernel[-1:]}
    return shapes


def main(options: _Options) -> None:
    """Measures all cells."""
    timing.configure(options, deterministic=False)
    with joined(options) as connection:
        kernels = choose_kernels("", "", on_gpu=False)[0]  # this starts TensorFlow
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        host = _Host(options, connection, kernels, step)
        write_cells(_measure_all(host), options, connection.rank)


def _measure_all(host: _Host) -> list[dict]:
    cells = []
    for net in host.options.gradients:
        gradients = {
            name: tf.Variable(
                _SPREAD * tf.random.stateless_normal(shape, [host.connection.rank, i])
            )
            for i, (name, shape) in enumerate(shapes_of(net).items())
        }
        for kind in host.options.exchanges:
            cell = {"gradients": net, "exchange": kind}
            cells.append(cell | _measure(host, net, kind, gradients))
    return cells


def _measure(host: _Host, net: str, kind: str, gradients: Mapping[str, tf.Variable]) -> dict:
    """Returns the figures of a cell, or why it was skipped."""
    size = sum(math.prod(v.shape) for v in gradients.values())
    needed = 4 * size * _COPIES * host.connection.size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if FLOAT_BITS.get(kind) and needed > memory:
        return {"values": size, "skipped": f"may need {needed / 1e9:.0f} GB of this machine"}
    exchange = host.connection.exchange(1, host.kernels, host.step)
    run = (
        _ring(host.connection, net, gradients)
        if kind == RING
        else _exchanger(host, kind, gradients, exchange)
    )
    _timed(host, run)  # the first exchange connects
    took: list[float] = []
    _is_over(host, took)  # waits for all hosts
    before = _counted(host, exchange)
    while not _is_over(host, took):
        took.append(_timed(host, run))
    each = {
        name: ((np.array(now) - before[name]) / len(took)).tolist()
        for name, now in _counted(host, exchange).items()
    }
    return {"values": size, "ms": [1000 * seconds for seconds in took]} | each


def _counted(host: _Host, exchange: Exchange) -> dict[str, Sequence[float]]:
    """Returns counters so far, of this host and of each ps."""
    options = host.options
    servers = [counters(options.interface, process) for process in options.ps_processes]
    return {
        "interface": counters(options.interface)[:2],
        "cpu": [cpu_seconds("self")],
        "wakeups": [resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw],
        "counted": (int(exchange.bytes_sent), int(exchange.bytes_received)),
        "servers": [list(server) for server in servers],
    }


def _timed(host: _Host, run: _Run) -> float:
    begin = time.perf_counter()
    run()
    duration = time.perf_counter() - begin
    host.step.assign_add(1)
    return duration


def _is_over(host: _Host, took: Sequence[float]) -> bool:
    """Whether a cell has all its rounds or used up its time; all hosts give the same answer."""
    spent = tf.constant([math.fsum(took)])
    longest = np.max(host.connection.all_gather(spent, "benchmark/time"))
    return len(took) == host.options.rounds or bool(took and longest > host.options.cell_secs)


def _exchanger(
    host: _Host, kind: str, gradients: Mapping[str, tf.Variable], exchange: Exchange
) -> _Run:
    """Returns the suite's own exchange, from gradients to their mean."""
    shapes = [v.shape for v in gradients.values()]
    layout = make_layout(list(gradients), shapes, POLICIES[kind], host.options.bucket_elements)
    codecs = make_codecs(layout, host.kernels)
    reduction = Reduction(codecs, exchange, host.step, seed=1, devices=[_CPU])

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        values = [v.read_value() for v in gradients.values()]
        found = reduction.reduce([values], reduction.keys(host.step.read_value()))
        reduction.remember(found)
        return found.means

    return run


def _ring(transport: Transport, net: str, gradients: Mapping[str, tf.Variable]) -> _Run:
    """Returns the engine's own all-reduce of float32, by variable, the last layer first."""

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        return [
            _all_reduce(transport, gradients[name].read_value(), f"{net}/{name}")
            for name in reversed(gradients)
        ]

    return run


def _all_reduce(transport: Transport, values: tf.Tensor, name: str) -> tf.Tensor:
    """Sums float32 tensors in the order that the sockets or mpi4py choose."""
    if isinstance(transport, SocketTransport):
        total, _ = transport.sum_floats(tf.reshape(values, [-1]), name)
        return tf.reshape(total, values.shape)
    return tf.ensure_shape(tf.numpy_function(_reduce_by_mpi, [values], tf.float32), values.shape)


def _reduce_by_mpi(mine: np.ndarray) -> np.ndarray:
    from mpi4py import MPI  # an optional package

    total = np.empty_like(mine)
    MPI.COMM_WORLD.Allreduce(np.ascontiguousarray(mine), total, MPI.SUM)
    return total


if __name__ == "__main__":
    report.run(main, _Options)
