"""Runs an exchange's operations on fixed data, for tests that compare topologies.

python -m terngrad.testing.conformance local 0 1 NODES FILE
python -m terngrad.testing.conformance sockets RANK HOST:PORT,... NODES FILE
mpirun -np P python -m terngrad.testing.conformance mpi 0 - NODES FILE
python -m terngrad.testing.conformance parameter_server RANK PS:PORT,.../WORKER,... NODES FILE
horovodrun -np P python -m terngrad.testing.conformance horovod 0 - NODES FILE

Names of codecs, such as my_module:MyCodec, may follow FILE: then only these run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import make_codecs, payloads
from terngrad.codecs.sum_codec import coded_exchanges, sum_codecs
from terngrad.connect.config import ConnectConfig
from terngrad.coordination.states import Rules
from terngrad.draws import DrawKey
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import Exchange, LocalBucket
from terngrad.exchange.local import LocalExchange
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.layout import Policy, make_layout
from terngrad.ops.packing import ReferencePacking
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import finished
from terngrad.training.memory import Memory
from terngrad.training.reduction import exchange_gradients
from terngrad.training.runtime import choose_kernels

NAMES = ["a/kernel", "a/bias", "b/kernel", "b/bias", "c/kernel"]
SHAPES = [(7, 9), (9,), (33, 5), (1,), (40, 41)]
POLICIES = {
    "float": Policy(),
    "half": Policy(grad_bits=16),
    "ternary": Policy(grad_bits=1, clip_factor=2.5),
    "antithetic": Policy(grad_bits=1, clip_factor=2.5, draws="antithetic"),
    "5-level": Policy(grad_bits=2, clip_factor=2.5),
    "7-level": Policy(  # as the library's own, but for the size of small variables
        grad_bits=3, clip_factor=4.0, size_to_binarize=10, draws="antithetic", scale_by="channel"
    ),
    "15-level": Policy(grad_bits=4),
    "255-level": Policy(grad_bits=8, draws="antithetic"),
    "mixed": Policy(grad_bits=1, size_to_binarize=10, float_layers=("b",)),
    "channel": Policy(grad_bits=1, clip_factor=2.5, scale_by="channel"),
    "block": Policy(grad_bits=1, scale_by="block:128"),
    "unpacked": Policy(codec="terngrad.codecs.examples:UnpackedTernaryCodec"),
    "own scale": Policy(codec="terngrad.codecs.examples:OwnScaleTernaryCodec"),
    "ternary-feedback": Policy(codec="ternary-feedback"),
    "5-level-feedback": Policy(codec="5-level-feedback", scale_by="channel"),
    "coded sums": Policy(grad_bits=1, clip_factor=2.5, sum_codec="ternary"),
    "channel, coded sums": Policy(grad_bits=2, scale_by="channel", sum_codec="ternary"),
    "block, coded sums": Policy(grad_bits=1, scale_by="block:128", sum_codec="ternary"),
    "feedback both ways": Policy(codec="ternary-feedback", sum_codec="ternary"),
}
STEPS = 3
_BUCKET_ELEMENTS = 100  # several buckets: their operations overlap


def local(rank: int, hosts: str) -> None:
    """Has no connection: this process computes all nodes."""
    del rank, hosts


def sockets(rank: int, hosts: str) -> Connection:
    """Connects processes by the native mesh; HOST:PORT,.../CA,CERT,KEY encrypts it."""
    from terngrad.connect.certificates import Tls
    from terngrad.connect.config import ConnectConfig
    from terngrad.connect.tls import TlsContexts
    from terngrad.exchange.sockets import start

    hosts, _, files = hosts.partition("/")  # the first file begins with another /
    contexts = TlsContexts(Tls(*files.split(","))) if files else None
    return start(ConnectConfig(hosts.split(","), rank, tls=contexts), b"a token")


def mpi(rank: int, hosts: str) -> Connection:
    """Connects processes that mpirun started."""
    del rank, hosts
    from mpi4py import MPI

    from terngrad.exchange.mpi import MpiTransport

    return MpiTransport(MPI.COMM_WORLD)


def horovod(rank: int, hosts: str) -> Connection:
    """Connects processes that horovodrun or mpirun started."""
    del rank, hosts
    from terngrad.exchange.horovod import start

    return start(timeout_secs=60.0)


def parameter_server(rank: int, hosts: str) -> Connection:
    """Connects workers to parameter servers."""
    from terngrad.connect.config import ConnectConfig
    from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
    from terngrad.exchange.parameter_server.worker.client import Client

    ps_hosts, worker_hosts = (names.split(",") for names in hosts.split("/"))
    return ParameterServerConnection(Client(ConnectConfig(worker_hosts, rank, ps_hosts)))


CONNECTIONS: Mapping[str, Callable[[int, str], Connection | None]] = {
    "local": local,
    "sockets": sockets,
    "mpi": mpi,
    "horovod": horovod,
    "parameter_server": parameter_server,
}


def main() -> None:
    """Saves the results of this process' exchange."""
    kind, rank, hosts, nodes, path, *names = sys.argv[1:]
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    tf.config.threading.set_inter_op_parallelism_threads(2)
    connection = CONNECTIONS[kind](int(rank), hosts)
    kernels = choose_kernels().kernels
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    exchange = (
        connection.exchange(int(nodes) // connection.size, kernels, step)
        if connection
        else LocalExchange(int(nodes), kernels)
    )
    if connection:
        connection.synchronize([step])
    found = {}
    policies = {name: Policy(codec=name) for name in names} or POLICIES
    for name, policy in policies.items():
        before = int(exchange.bytes_sent)
        layout = make_layout(NAMES, SHAPES, policy, _BUCKET_ELEMENTS)
        codecs = make_codecs(layout, kernels)
        result = _run(exchange, codecs, step)
        for i in range(len(SHAPES)):
            found[f"{name} {i}"] = result.means[i].numpy()
            found[f"{name} total {i}"] = result.totals[i].numpy()
        for variable, value in result.memory.items():
            found[f"{name} {variable}"] = value.numpy()
        found[f"{name} bytes"] = int(exchange.bytes_sent) - before
        found[f"{name} payload"] = STEPS * sum(p.sent for p in payloads(codecs, exchange))
        found[f"{name} buckets"] = STEPS * len(codecs)
        is_coded = any(codec.max_code for codec in codecs)
        found[f"{name} packs"] = exchange.packs_codes and is_coded
    if kind in ("mpi", "horovod"):  # the launcher, not the command, knows the rank
        path = f"{path}_{exchange.first_node // exchange.local_nodes}.npz"
    if connection:
        connection.close()
    np.savez(path, **found)


class _Result(NamedTuple):
    """The results of some steps.

    Attributes:
      means: mean gradients of the last step.
      totals: sums of the means of all steps.
      memory: memory after the last step, by name; see `training.memory.Memory`.
    """

    means: list[tf.Tensor]
    totals: list[tf.Tensor]
    memory: dict[str, tf.Variable]


def _run(exchange: Exchange, codecs: Sequence[Codec], steps: tf.Variable) -> _Result:
    """Runs some steps in a loop, as training does."""
    mine = range(exchange.first_node, exchange.first_node + exchange.local_nodes)
    sums = sum_codecs(codecs, exchange)
    memory = Memory(codecs, exchange.first_node, exchange.local_nodes, sums=sums)

    @tf.function(autograph=False)
    def run() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        def step(i, _, totals):
            keys = [DrawKey(tf.constant(5, tf.uint64), i, tf.constant(n)) for n in mine]
            gradients = [gradients_of(node, i) for node in mine]
            devices = ["/CPU:0"] * len(mine)
            coded_sums = coded_exchanges(sums, memory.read_sums())
            found = exchange_gradients(
                gradients, codecs, exchange, keys, devices, memory.read(), coded_sums=coded_sums
            )
            memory.assign(found.kept)
            memory.assign_sums(found.kept_sums)
            steps.assign_add(1)
            return i + 1, found.means, [t + m for t, m in zip(totals, found.means, strict=True)]

        zeros = [tf.zeros(shape) for shape in SHAPES]
        start = (tf.constant(0, tf.int64), zeros, zeros)
        return tf.while_loop(lambda i, *_: i < STEPS, step, start, parallel_iterations=1)[1:]

    return _Result(*run(), memory.variables)


def gradients_of(node: int, step: tf.Tensor) -> list[tf.Tensor]:
    """Returns a node's gradients at a step."""
    seeds = [tf.stack([step, tf.constant(node * len(SHAPES) + i, tf.int64)]) for i in range(5)]
    return [tf.random.stateless_normal(s, k) for s, k in zip(SHAPES, seeds, strict=True)]


def bucket_of(codes: Sequence[tf.Tensor], name: str, max_code: int) -> LocalBucket:
    """Returns a bucket of one variable whose sum is wanted, given each local node's codes."""
    shapes, units = [(32 * codes[0].shape[0],)], tf.ones([1])
    return LocalBucket(name, max_code, lambda: list(codes), (0,), shapes, units, decoded=False)


def delivered(
    kind: str,
    count: int,
    hosts: str,
    folder: Path,
    codecs: Sequence[str] = (),
    launcher: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Returns the results of each of `count` processes, which have 4 nodes in all.

    Args:
      kind: a connection of `conformance`.
      count: number of processes.
      hosts: see `conformance`.
      folder: where they write.
      codecs: names of the only codecs to run.
      launcher: the start of the command that starts all processes; else they are started here.
      env: variables to set.
    """
    ranks = [("0", folder / kind)] if launcher else []
    ranks = ranks or [(str(rank), folder / f"{kind}_{rank}.npz") for rank in range(count)]
    program = [*(launcher or [sys.executable]), "-m", "terngrad.testing.conformance", kind]
    commands = [[*program, rank, hosts, "4", str(file), *codecs] for rank, file in ranks]
    for output, status in finished(commands, env):
        assert status == 0, output
    return [dict(np.load(folder / f"{kind}_{rank}.npz")) for rank in range(count)]


@contextlib.contextmanager
def parameter_servers(servers: int, workers: int) -> Iterator[str]:
    """Yields the hosts of parameter servers that run in this process, and of their workers."""
    ps_hosts, worker_hosts = free_addresses(servers), [f"worker{i}:1" for i in range(workers)]
    rules = Rules(workers, False, HANG_SECS)
    with contextlib.ExitStack() as stack:
        for i, host in enumerate(ps_hosts):
            config = ConnectConfig(worker_hosts, i, ps_hosts, HANG_SECS)
            server = Server(config, PackedArithmetic(ReferencePacking()), rules)
            server.start(host)
            stack.callback(server.close)
        yield "/".join((",".join(ps_hosts), ",".join(worker_hosts)))


if __name__ == "__main__":
    main()
