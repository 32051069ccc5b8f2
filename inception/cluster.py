"""The processes of a distributed training: their flags, and how they meet."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from inception.flag_table import BOOLEAN, NAMES, Checked, at_least, flag, number, one_of, refuse
from terngrad.exchange import admission, launched
from terngrad.exchange.channel import PortError, split_address
from terngrad.exchange.membership import Membership, end_process, reason_of
from terngrad.exchange.pulse import Pulse

if TYPE_CHECKING:
    from terngrad.exchange.channel import Peer
    from terngrad.exchange.horovod import HorovodTransport
    from terngrad.exchange.two_shot import Transport

LAUNCHED = ("mpi", "horovod")  # engines whose launcher knows the workers
_CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless the flag says otherwise
_LAST_PORT = (1 << 16) - 1
_LONGEST_TIMEOUT_SECS = 1e6
_LAUNCHERS = {"mpi": "mpirun", "horovod": "horovodrun"}  # of the engines that have their own


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """Which process this is, and of which group."""

    variable_update: str = flag(
        "Distributed",
        one_of("collective", *LAUNCHED),
        "collective",
        "engine of the exchange: collective (TensorFlow's own), mpi under mpirun, or horovod under "
        "horovodrun or mpirun, which know the workers and their indices themselves",
    )
    worker_hosts: tuple[str, ...] = flag(
        "Distributed", NAMES, (), "HOST:PORT of each worker, the same list on all"
    )
    task_id: int = flag(
        "Distributed", at_least(0), 0, "index of this worker in --worker_hosts; 0 is the chief"
    )
    worker_timeout_secs: float = flag(
        "Distributed",
        number(0, _LONGEST_TIMEOUT_SECS, above=True),
        60.0,
        "a worker that is not heard of for so long, or for whose next batch the others wait for so "
        "long, ends the training",
        "seconds",
    )
    control_port: int = flag(
        "Distributed",
        at_least(1, -1),
        -1,
        f"port at which the chief hears of the others; -1 = its own + {_CONTROL_PORT_ABOVE}",
    )
    save_interval_secs: float = flag(
        "Distributed",
        number(),
        600.0,
        "between the chief's checkpoints; 0 = by save_iter only",
        "seconds",
    )
    split_data: bool = flag(
        "Distributed",
        BOOLEAN,
        True,
        "each worker reads its share of the records; False: --data_dir holds just its share",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if launcher := _LAUNCHERS.get(self.variable_update):
            self._refuse_what_a_launcher_knows(launcher)
        else:
            self._check_hosts()
            self._check_control_port()

    def _refuse_what_a_launcher_knows(self, launcher: str) -> None:
        given = {"worker_hosts": ",".join(self.worker_hosts)}
        given |= {"task_id": self.task_id or "", "control_port": self.control_port}
        why = f"{launcher} names the workers; must not be set with --variable_update="
        for name, value in given.items():
            if value not in ("", -1):
                raise refuse(name, value, why + self.variable_update)

    def _check_hosts(self) -> None:
        hosts = ",".join(self.worker_hosts)
        if not self.worker_hosts:
            raise refuse("worker_hosts", "", "must name HOST:PORT of each worker")
        for host in self.worker_hosts:
            try:
                split_address(host)
            except ValueError as error:
                raise refuse("worker_hosts", hosts, str(error)) from None
        if len(set(self.worker_hosts)) < len(self.worker_hosts):
            raise refuse("worker_hosts", hosts, "must differ from each other")
        if self.task_id >= len(self.worker_hosts):
            last = len(self.worker_hosts) - 1
            raise refuse("task_id", self.task_id, f"must be 0 to {last}, an index of worker_hosts")

    def _check_control_port(self) -> None:
        address = self.control_address
        port = int(address.rpartition(":")[2])
        if port > _LAST_PORT:
            why = (
                f"must be 1 to {_LAST_PORT}; -1 = the chief's own + {_CONTROL_PORT_ABOVE} is {port}"
            )
            raise refuse("control_port", self.control_port, why)
        if address in self.worker_hosts:
            why = (
                f"{address} is the port of worker {self.worker_hosts.index(address)}; must be free"
            )
            raise refuse("control_port", self.control_port, why)

    @property
    def control_address(self) -> str:
        """HOST:PORT at which the chief hears of the others."""
        host, _, port = self.worker_hosts[0].rpartition(":")
        chosen = self.control_port if self.control_port != -1 else int(port) + _CONTROL_PORT_ABOVE
        return f"{host}:{chosen}"


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes of a training, as one of them sees them.

    Attributes:
      rank: index of this one; 0 is the chief, which writes checkpoints and summaries.
      size: number of them.
      split_data: each reads its share of the records.
      connect: returns the transport between them, None if there is but one; called once, after
        TensorFlow's threads are set and before it computes anything.
      agree: compares facts with the others; ValueError names a difference. It waits for them.
      pulse: how far this one is, for the others to see.
    """

    rank: int = 0
    size: int = 1
    split_data: bool = True
    connect: Callable[[], Transport | None] = lambda: None
    agree: Callable[[Mapping[str, str]], None] = lambda facts: None
    pulse: Pulse = dataclasses.field(default_factory=Pulse)

    @property
    def is_chief(self) -> bool:
        """Whether this one writes checkpoints and summaries."""
        return self.rank == 0

    @property
    def label(self) -> int | None:
        """What the lines of a step begin with; None for a process alone."""
        return self.rank if self.size > 1 else None


ALONE = Workers()


def joined(cluster: ClusterConfig) -> contextlib.AbstractContextManager[Workers]:
    """Meets the other workers until the end of the block.

    Raises:
      ValueError: names a worker that does not come or is lost, or what is not installed.
    """
    join = {
        "collective": _joined_by_sockets,
        "mpi": _joined_by_mpi,
        "horovod": _joined_by_horovod,
    }
    return join[cluster.variable_update](cluster)


@contextlib.contextmanager
def _joined_by_sockets(cluster: ClusterConfig) -> Iterator[Workers]:
    from terngrad.exchange import collective  # it loads TensorFlow: the flags were checked by now

    hosts, rank, timeout_secs = cluster.worker_hosts, cluster.task_id, cluster.worker_timeout_secs
    print(f"Worker hosts are: {list(hosts)}", flush=True)

    def connect() -> Transport:
        try:
            return collective.start(hosts, rank, timeout_secs)
        except ValueError as error:
            why = f"must name free ports of the workers: {error}"
            raise refuse("worker_hosts", ",".join(hosts), why) from None

    try:
        peers = admission.join(hosts, rank, cluster.control_address, timeout_secs)
    except PortError as error:
        raise refuse("control_port", cluster.control_port, str(error)) from None
    doors = {i: host for i, host in enumerate(hosts) if i != rank}
    with _taking_part(cluster, hosts, rank, peers, connect, doors=doors) as workers:
        yield workers


@contextlib.contextmanager
def _joined_by_mpi(cluster: ClusterConfig) -> Iterator[Workers]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that of foreign launchers, which are refused below
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # there is no mpi4py, or it finds no library
        why = f"needs mpi4py and an MPI library, pip install '.[mpi]' ({error})"
        raise refuse("variable_update", "mpi", " ".join(why.split())) from None
    from terngrad.exchange.mpi import MpiTransport

    world = MPI.COMM_WORLD
    if why := launched.misfit(world.size, os.environ):
        raise refuse("variable_update", "mpi", f"must be started by mpirun of mpi4py's MPI: {why}")
    connect = lambda: MpiTransport(world)
    with _ending_at_once(f"worker {world.rank}"):
        hosts, peers = _meet(world.rank, world.allgather, cluster)
        with _taking_part(cluster, hosts, world.rank, peers, connect) as workers:
            yield workers


@contextlib.contextmanager
def _joined_by_horovod(cluster: ClusterConfig) -> Iterator[Workers]:
    try:
        from terngrad.exchange import horovod
    except ImportError as error:
        why = f"needs Horovod, bash scripts/install_horovod.sh ({error})"
        raise refuse("variable_update", "horovod", why) from None
    try:
        transport = horovod.start(cluster.worker_timeout_secs)
    except ValueError as error:
        raise refuse("variable_update", "horovod", str(error)) from None
    with _ending_at_once(f"worker {transport.rank}"), contextlib.ExitStack() as stack:
        yield _meeting_late(cluster, transport, stack)


def _meeting_late(
    cluster: ClusterConfig, transport: HorovodTransport, stack: contextlib.ExitStack
) -> Workers:
    """Workers who meet when they connect, since Horovod talks with TensorFlow's operations."""
    rank, pulse = transport.rank, Pulse()
    unsaid: dict[str, str] = {}
    met: list[Workers] = []

    def agree(facts: Mapping[str, str]) -> None:
        if met:
            met[0].agree(facts)
        else:
            unsaid.update(facts)

    def connect() -> Transport:
        hosts, peers = _meet(rank, transport.gather_objects, cluster)
        joining = _taking_part(cluster, hosts, rank, peers, lambda: transport, pulse=pulse)
        met.append(stack.enter_context(joining))
        agree(unsaid)
        return transport

    return Workers(rank, transport.size, cluster.split_data, connect, agree, pulse)


def _meet(
    rank: int, gather: launched.Gather, cluster: ClusterConfig
) -> tuple[list[str], dict[int, Peer]]:
    """Meets the workers that a launcher started; see `launched.join`."""
    hosts, peers = launched.join(rank, gather, cluster.worker_timeout_secs)
    if rank == 0:
        print(f"Worker hosts are: {hosts}", flush=True)
    return hosts, peers


@contextlib.contextmanager
def _ending_at_once(name: str) -> Iterator[None]:
    """Ends this process where the block fails, and the launcher then the others.

    An orderly end would wait for the others, who wait for this one.
    """
    try:
        yield
    except SystemExit:  # all processes end so, at the same step
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        end_process(f"{name} ({socket.gethostname()}) ends: {reason_of(error)}")


@contextlib.contextmanager
def _taking_part(
    cluster: ClusterConfig,
    hosts: Sequence[str],
    rank: int,
    peers: Mapping[int, Peer],
    connect: Callable[[], Transport],
    *,
    pulse: Pulse | None = None,
    doors: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[Workers]:
    """Watches the other workers until the end of the block; for `doors` see `Membership`."""
    from terngrad.exchange.operation_errors import OperationError, reason

    pulse, timeout_secs = pulse or Pulse(), cluster.worker_timeout_secs
    with Membership(hosts, rank, peers, timeout_secs, pulse=pulse, doors=doors) as membership:
        try:
            yield Workers(rank, len(hosts), cluster.split_data, connect, membership.agree, pulse)
        except OperationError as error:
            membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
            text = f"an operation between the workers failed: {reason(error, hosts)}"
            raise ValueError(text) from error


def fingerprint(values: Sequence[np.ndarray]) -> str:
    """Differs between lists of arrays that are not equal bit for bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
