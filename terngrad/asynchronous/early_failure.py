"""How worker 0, if it ends before it has begun a run, tells the others why.

The others go on without any other worker. This module loads no TensorFlow.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from terngrad.asynchronous.acts import BYE
from terngrad.asynchronous.framing import frames
from terngrad.service import last_report
from terngrad.service.messages import Call
from terngrad.service.security import Tls
from terngrad.service.streams import hello


def tell(
    ps_hosts: Sequence[str],
    worker_hosts: Sequence[str],
    why: str,
    timeout_secs: float,
    tls: Tls | None = None,
    secret: bytes = b"",
) -> None:
    """Tells all ps, which tell the others; for the arguments see `Client`."""
    messages = [*frames(Call(act=BYE, failed=why[: last_report.LONGEST_REASON]))]

    def tell_one(ps: int) -> None:
        introduction = hello(0, ps, ps_hosts, worker_hosts)
        last_report.send(introduction, "Update", messages, timeout_secs, tls, secret)

    # A signal ends this process at once: nothing waits for a daemon.
    threads = [
        threading.Thread(target=tell_one, args=(ps,), daemon=True) for ps in range(len(ps_hosts))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
