"""The processes of a distributed training: their flags, and how they meet."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from inception.flag_table import BOOLEAN, NAMES, Checked, at_least, flag, number, one_of, refuse
from terngrad.exchange.membership import Membership, MembershipError, difference, split_address

if TYPE_CHECKING:
    from terngrad.exchange.two_shot import Transport

LAUNCHED = ("mpi",)  # engines whose launcher knows the workers
_CONTROL_PORT_ABOVE = 1000  # of the chief's own port, unless the flag says otherwise


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig(Checked):
    """Which process this is, and of which group."""

    variable_update: str = flag(
        "Distributed",
        one_of("collective", *LAUNCHED),
        "collective",
        "engine of the exchange: collective (TensorFlow's own), or mpi under mpirun, which knows "
        "the workers and their indices itself",
    )
    worker_hosts: tuple[str, ...] = flag(
        "Distributed", NAMES, (), "HOST:PORT of each worker, the same list on all"
    )
    task_id: int = flag(
        "Distributed", at_least(0), 0, "index of this worker in --worker_hosts; 0 is the chief"
    )
    worker_timeout_secs: float = flag(
        "Distributed",
        number(above=True),
        60.0,
        "a worker that is not heard of for so long ends the training",
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
        if self.variable_update == "mpi":
            if self.worker_hosts:
                why = "mpirun names the workers; must not be set with --variable_update=mpi"
                raise refuse("worker_hosts", ",".join(self.worker_hosts), why)
            return
        if not self.worker_hosts:
            raise refuse("worker_hosts", "", "must name HOST:PORT of each worker")
        for host in self.worker_hosts:
            try:
                split_address(host)
            except ValueError as error:
                raise refuse("worker_hosts", ",".join(self.worker_hosts), str(error)) from None
        if len(set(self.worker_hosts)) < len(self.worker_hosts):
            raise refuse("worker_hosts", ",".join(self.worker_hosts), "must differ from each other")
        if self.task_id >= len(self.worker_hosts):
            last = len(self.worker_hosts) - 1
            raise refuse("task_id", self.task_id, f"must be 0 to {last}, an index of worker_hosts")

    @property
    def control_address(self) -> str:
        """HOST:PORT at which the chief hears of the others."""
        host, port = split_address(self.worker_hosts[0])
        chosen = self.control_port if self.control_port != -1 else port + _CONTROL_PORT_ABOVE
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
      agree: compares facts with the others; ValueError names a difference.
    """

    rank: int = 0
    size: int = 1
    split_data: bool = True
    connect: Callable[[], Transport | None] = lambda: None
    agree: Callable[[Mapping[str, str]], None] = lambda facts: None

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
    return {"collective": _joined_by_sockets, "mpi": _joined_by_mpi}[cluster.variable_update](
        cluster
    )


@contextlib.contextmanager
def _joined_by_sockets(cluster: ClusterConfig) -> Iterator[Workers]:
    from terngrad.exchange import collective  # it loads TensorFlow: the flags were checked by now

    hosts, rank = cluster.worker_hosts, cluster.task_id
    print(f"Worker hosts are: {list(hosts)}", flush=True)
    with Membership(
        hosts, rank, cluster.control_address, cluster.worker_timeout_secs
    ) as membership:
        connect = lambda: collective.start(hosts, rank)
        try:
            yield Workers(rank, len(hosts), cluster.split_data, connect, membership.agree)
        except collective.OperationError as error:
            membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
            reason = str(error).splitlines()[0]
            raise ValueError(f"an operation between the workers failed: {reason}") from error


@contextlib.contextmanager
def _joined_by_mpi(cluster: ClusterConfig) -> Iterator[Workers]:
    try:
        from mpi4py import MPI
    except ImportError as error:
        why = f"needs mpi4py and an MPI library, pip install '.[mpi]' ({error})"
        raise refuse("variable_update", "mpi", why) from None
    from terngrad.exchange.mpi import MpiTransport

    world = MPI.COMM_WORLD
    names = [f"worker {i} ({name})" for i, name in enumerate(world.allgather(_host(MPI)))]

    def agree(facts: Mapping[str, str]) -> None:
        all_facts = world.allgather(dict(facts))
        for name, theirs in zip(names[1:], all_facts[1:], strict=True):
            if text := difference(all_facts[0], theirs, names[0], name):
                raise MembershipError(text)

    if world.rank == 0:
        print(f"Worker hosts are: {names}", flush=True)
    try:
        yield Workers(
            world.rank, world.size, cluster.split_data, lambda: MpiTransport(world), agree
        )
    except SystemExit:  # all processes end so, at the same step
        raise
    except BaseException as error:  # the others would wait for this one for ever
        if not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        text = " ".join(str(error).split())
        print(f"{names[world.rank]} ends: {text}", file=sys.stderr, flush=True)
        world.Abort(1)


def _host(mpi: ModuleType) -> str:
    return mpi.Get_processor_name()


def fingerprint(values: Sequence[np.ndarray]) -> str:
    """Differs between lists of arrays that are not equal bit for bit."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]
