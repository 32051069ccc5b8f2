"""A meeting of processes at a chief that a test serves, and checks for it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

from terngrad.cluster import admission
from terngrad.cluster.channel import split_address
from terngrad.cluster.encrypted import Encryption
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
    encryption: Encryption | None = None,
    secret: bytes = b"",
) -> Callable[[], Mapping[int, object]]:
    """Returns a call in which a process joins; the chief listens already, so all can reach it."""
    options = timeout_secs, encryption, secret
    if rank == 0:
        listener = admission.listen(*split_address(address))
        return lambda: admission.receive_all(listener, hosts, *options)
    return lambda: admission.join(hosts, rank, address, *options)


@contextlib.contextmanager
def receiving(
    address: str,
    hosts: Sequence[str],
    encryption: Encryption | None = None,
    secret: bytes = b"",
) -> Iterator[admission._Reception]:
    """Yields the chief's connections, which the test serves."""
    listener = admission.listen(*split_address(address))
    with listener, admission._Reception(listener, hosts, encryption, secret) as reception:
        yield reception


def serve_until(reception: admission._Reception, condition: Callable[[], bool]) -> None:
    """Serves the chief's connections until a condition holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        reception.serve(0.01)


def received(
    call: Callable[[], object],
    address: str,
    hosts: Sequence[str],
    encryption: Encryption | None = None,
    secret: bytes = b"",
) -> tuple[object, str]:
    """Serves the chief's connections while a call that joins lasts.

    Returns:
      What the call returns or raises, and what the chief says then after a time-out of 5 s.
    """
    with (
        receiving(address, hosts, encryption, secret) as reception,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        called = pool.submit(in_threads, call)
        serve_until(reception, called.done)
        return called.result()[0], reception.complaint(5.0)


def assert_met(results: Sequence[Mapping[int, object]]) -> None:
    """Asserts that the chief is connected to each other process, and each of these to the chief.

    Args:
      results: connections of each process, by rank of the other process.
    """
    assert all(isinstance(r, dict) for r in results), results
    assert sorted(results[0]) == list(range(1, len(results)))
    for result in results[1:]:
        assert sorted(result) == [0]
