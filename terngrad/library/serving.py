"""A parameter server, in a process that a cluster's description calls one."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import NoReturn

from terngrad.cluster.channel import PortError, split_address
from terngrad.cluster.managed.role import Role
from terngrad.cluster.membership import LOST_STATUS
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.library.roles import rules_of
from terngrad.service import listening, memory
from terngrad.service.calls import ps_name
from terngrad.service.security import Tls
from terngrad.training import runtime


def serve(
    role: Role, tls: Tls | None, timeout_secs: float, secret: bytes, *, is_open: bool
) -> NoReturn:
    """Adds what the workers send until they are done, then ends this process.

    Args:
      role: of this process.
      tls: its certificates.
      timeout_secs: see `joining.join`; the workers need the same.
      secret: that the workers must have, too; b"" = none.
      is_open: whether other machines may connect without certificates.

    Raises:
      SystemExit: at the end: with status 0, or `LOST_STATUS` if a worker was lost.
      ValueError: its port is taken.
    """
    hosts, workers = role.ps_hosts, role.worker_hosts
    own = hosts[role.task_id]
    here = [host for host in hosts if split_address(host)[0] == split_address(own)[0]]
    rules = rules_of(role, timeout_secs)
    reduction = Reduction(runtime.kernels().kernels.packing)
    most_bytes = memory.most_held() // len(here)
    server = Server(role.task_id, hosts, workers, reduction, rules, tls, _say, most_bytes, secret)
    name = ps_name(role.task_id, hosts)
    for number in (signal.SIGTERM, signal.SIGINT):
        # In a thread: this one may hold the lock that `stop` needs.
        signal.signal(number, lambda *_: threading.Thread(target=server.stop).start())
    try:
        who = listening.listen(server.start, own, tls, is_open=is_open)
    except PortError as error:
        raise ValueError(f"join: ps_hosts: {error}") from None
    _say(f"{name} waits for {len(workers)} workers {who}.")
    outcome = server.wait(lambda: None)
    server.close()
    if outcome:
        with contextlib.suppress(OSError):
            print(f"{name} ends: {outcome}", file=sys.stderr, flush=True)
        sys.exit(LOST_STATUS)
    _say(f"{name} ends.")
    sys.exit(0)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)
