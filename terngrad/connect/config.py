"""What a process needs to connect to the others of its training."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence

from terngrad.cluster.addresses import Interface, listen, name_of
from terngrad.cluster.errors import MembershipError
from terngrad.connect.introduction import Hello, why_too_long
from terngrad.connect.tls import TlsContexts


@dataclasses.dataclass(frozen=True)
class ConnectConfig:
    """The addresses of a training's processes, and how this one proves that it belongs to them.

    Raises MembershipError if there are too many hosts for a hello.

    Attributes:
      worker_hosts: "host:port" of each worker, the same list in all processes.
      rank: index of this process in `worker_hosts`, or in `ps_hosts` if it is a ps.
      ps_hosts: "host:port" of each ps, likewise.
      timeout_secs: how long to wait for a process, and after which a silent one is lost.
      tls: what encrypts, and checks certificates; None = plain text, and any process.
      secret: that all processes share; b"" = none.
      return_secs: how long to look for a ps that was there before; None = timeout_secs.
      interface: at whose address this process listens, and from which it connects; None = any.
      only_here: whether only this machine may connect to this process; its host is loopback.
    """

    worker_hosts: Sequence[str]
    rank: int
    ps_hosts: Sequence[str] = ()
    timeout_secs: float = 60.0
    tls: TlsContexts | None = None
    secret: bytes = b""
    return_secs: float | None = None
    interface: Interface | None = None
    only_here: bool = False

    def __post_init__(self) -> None:
        if why := why_too_long(self.worker_hosts, self.ps_hosts):
            raise MembershipError(why)

    @property
    def name(self) -> str:
        """The name of this process, a worker, in messages."""
        return name_of(self.rank, self.worker_hosts)

    def listen(self, host: str, port: int, backlog: int | None = None) -> socket.socket:
        """Listens at a host and port of this process; see `addresses.listen`."""
        where = {"only_here": self.only_here, "interface": self.interface}
        return listen(host, port, backlog=backlog, **where)

    def hello(self, purpose: str, callee: int, rules: str = "", failed: str = "") -> Hello:
        """Returns the hello of this worker to the process with index `callee`."""
        hosts = list(self.worker_hosts), list(self.ps_hosts)
        return Hello(purpose, self.rank, callee, *hosts, rules, self.timeout_secs, failed)
