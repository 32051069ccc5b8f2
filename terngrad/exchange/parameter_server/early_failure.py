"""How a worker that ends before it has joined tells the others why. It loads no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from terngrad.coordination.states import Rules
from terngrad.service import last_report
from terngrad.service.messages import Report
from terngrad.service.security import Tls
from terngrad.service.streams import hello


def tell(
    ps_hosts: Sequence[str],
    worker_hosts: Sequence[str],
    rank: int,
    why: str,
    rules: Rules,
    timeout_secs: float,
    tls: Tls | None = None,
    secret: bytes = b"",
) -> None:
    """Tells ps 0, which tells the others; for the arguments see `Client`."""
    introduction = hello(rank, 0, ps_hosts, worker_hosts, str(rules))
    report = Report(failed=why[: last_report.LONGEST_REASON]).SerializeToString()
    last_report.send(introduction, "Meet", [report], timeout_secs, tls, secret)
