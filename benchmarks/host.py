"""Shared by the programs that benchmarks run on each host: how hosts connect, and counters."""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from inception.flags.configs import Threads
from inception.flags.table import NAMES, TEXT, at_least, flag, one_of
from terngrad.connect.config import ConnectConfig
from terngrad.exchange.connection import Connection

ENGINES = ("sockets", "sockets_tls", "mpi", "parameter_server")

_TIMEOUT_SECS = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostOptions(Threads):
    """The flags of one host."""

    engine: str = flag("Distributed", one_of(*ENGINES), ENGINES[0], "engine of the exchange")
    worker_hosts: tuple[str, ...] = flag("Distributed", NAMES, (), "HOST:PORT of each host")
    ps_hosts: tuple[str, ...] = flag("Distributed", NAMES, (), "HOST:PORT of each ps, if any")
    task_id: int = flag("Distributed", at_least(0), 0, "index of this host")
    certificates: str = flag("Distributed", TEXT, "", "folder of make_certs.sh, for sockets_tls")
    interface: str = flag("Distributed", TEXT, "eth0", "interface whose bytes are counted")
    output_dir: str = flag("Distributed", TEXT, ".", "folder for this host's cells, INDEX.json")


class Counters(NamedTuple):
    """Counters of a process and of its host's network interface since they were created.

    Attributes:
      sent: bytes sent through the interface, with all headers.
      received: bytes received through the interface.
      cpu_seconds: CPU time of the process.
      page_faults: minor page faults of the process.
    """

    sent: int
    received: int
    cpu_seconds: float
    page_faults: int

    def since(self, before: "Counters") -> "Counters":
        """Returns the differences to earlier counters."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


@contextlib.contextmanager
def joined(options: HostOptions) -> Iterator[Connection]:
    """Connects to the other hosts until the end of the block."""
    match options.engine:
        case "mpi":
            from mpi4py import MPI

            from terngrad.exchange.mpi import MpiTransport

            yield MpiTransport(MPI.COMM_WORLD)
        case "parameter_server":
            yield from _by_servers(options)
        case _:
            yield from _by_sockets(options)


def _by_sockets(options: HostOptions) -> Iterator[Connection]:
    from terngrad.connect.certificates import Tls
    from terngrad.connect.tls import TlsContexts
    from terngrad.exchange import sockets

    hosts, rank, contexts = options.worker_hosts, options.task_id, None
    if options.engine == "sockets_tls":
        own = os.path.join(options.certificates, hosts[rank].rpartition(":")[0])
        ca = os.path.join(options.certificates, "ca.crt")
        contexts = TlsContexts(Tls(ca, f"{own}.crt", f"{own}.key"))
    token = bytes(16)  # nobody else is in the benchmark's network
    connection = sockets.start(ConnectConfig(hosts, rank, (), _TIMEOUT_SECS, contexts), token)
    yield connection
    connection.close()


def _by_servers(options: HostOptions) -> Iterator[Connection]:
    import tensorflow as tf

    from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
    from terngrad.exchange.parameter_server.worker.client import Client

    hosts = options.worker_hosts, options.task_id, options.ps_hosts
    client = Client(ConnectConfig(*hosts, _TIMEOUT_SECS))
    connection = ParameterServerConnection(client)
    connection.synchronize([tf.Variable(0, dtype=tf.int64, trainable=False)])
    yield connection
    client.coordination.leave()
    client.close(is_done=True)


def counters(interface: str, process: str = "self") -> Counters:
    """Returns the counters of a process id, which may be on another host of this machine."""
    lines = Path("/proc", process, "net/dev").read_text().splitlines()
    fields = next(line for line in lines if line.strip().startswith(f"{interface}:")).split()[1:]
    status = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()  # see proc(5)
    return Counters(int(fields[8]), int(fields[0]), cpu_seconds(process), int(status[7]))


def cpu_seconds(process: str) -> float:
    """Returns the CPU seconds of all threads of a process.

    /proc counts them in ticks of 10 ms, too coarse for a server's few rounds; Linux also has a
    clock of each process in nanoseconds, whose number is made of its id (clock_getcpuclockid(3)).
    """
    pid = os.getpid() if process == "self" else int(process)
    return time.clock_gettime((~pid << 3) | 2)


def write_cells(cells: Sequence[dict], options: HostOptions, rank: int) -> None:
    """Writes a host's figures to the file that the benchmark reads."""
    Path(options.output_dir, f"{rank}.json").write_text(json.dumps(cells), encoding="utf-8")
