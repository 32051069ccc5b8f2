"""Processes that a chief, which a test serves, admits to a training, and checks of it."""

import time
from collections.abc import Callable, Mapping, Sequence

from terngrad.cluster import admission
from terngrad.cluster.channel import split_address
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import Members
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.threads import in_threads

TIMEOUT = HANG_SECS


def hosts_of(count: int) -> list[str]:
    """Returns the hosts of `count` workers; no process listens there."""
    return [f"host{i}:2222" for i in range(count)]


def joining(
    rank: int,
    address: str,
    hosts: Sequence[str],
    timeout_secs: float,
    encryption: Members | None = None,
    secret: bytes = b"",
) -> Callable[[], Mapping[int, object]]:
    """Returns a call in which a process joins; the chief listens already, so all can reach it."""
    config = ConnectConfig(hosts, rank, (), timeout_secs, encryption, secret)
    if rank == 0:
        listener = admission.listen(*split_address(address))
        return lambda: admission.receive_all(config, listener)
    return lambda: admission.join(config, address)


def received(
    call: Callable[[], object],
    address: str,
    hosts: Sequence[str],
    encryption: Members | None = None,
    secret: bytes = b"",
    fault: str = "",
) -> tuple[object, str]:
    """Receives processes while a call that joins lasts, and until the chief notes a fault, if any.

    Returns:
      What the call returns or raises, and what the chief says then after a time-out of 5 s.
    """
    listener = admission.listen(*split_address(address))
    config = ConnectConfig(hosts, 0, members=encryption, secret=secret)
    with admission.ChiefListener(config, listener) as reception:
        result, deadline = in_threads(call)[0], time.monotonic() + TIMEOUT
        while fault not in (said := reception.complaint(5.0)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return result, said


def assert_met(results: Sequence[Mapping[int, object]]) -> None:
    """Asserts that the chief is connected to each other process, and each of these to the chief.

    Args:
      results: connections of each process, by rank of the other process.
    """
    assert all(isinstance(r, dict) for r in results), results
    assert sorted(results[0]) == list(range(1, len(results)))
    for result in results[1:]:
        assert sorted(result) == [0]
