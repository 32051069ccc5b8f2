"""Connects processes that a launcher (mpirun, horovodrun) started and connected with an engine.

When a process is lost, the engine ends or waits forever, and does not name the lost process. So the
processes open a second channel, at a free port that the chief picks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from terngrad.cluster import interfaces, run_secret
from terngrad.cluster.addresses import Interface, host_and_port, is_loopback_address, listen
from terngrad.cluster.admission import Peer, reach_chief, receive_all
from terngrad.cluster.membership import end_process
from terngrad.connect.config import ConnectConfig

_LOOPBACK = "127.0.0.1"

OPEN_MPI = "OMPI_COMM_WORLD_SIZE"  # set by Open MPI's mpirun
# Number of processes started, by launcher: horovodrun with Gloo, Open MPI, MPICH and derivatives.
_COUNTS = ("HOROVOD_SIZE", OPEN_MPI, "PMI_SIZE")

Gather = Callable[[Any], list[Any]]  # returns the objects of all processes, in process order


def why_incomplete(size: int, environment: Mapping[str, str]) -> str:
    """Returns why `size` connected processes are not all that the launcher started; "" if they are.

    If the launcher belongs to another library than the processes use, each process runs alone.
    """
    count = next((environment[name] for name in _COUNTS if name in environment), None)
    if count is None:
        return "" if size > 1 else "no launcher started this process"
    return "" if int(count) == size else f"{count} processes were started, but this one sees {size}"


def join(
    rank: int, gather: Gather, timeout_secs: float, interface: Interface | None = None
) -> tuple[list[str], dict[int, Peer]]:
    """Connects to the other processes; returns when all have joined.

    Args:
      rank: index of this process.
      gather: an all-gather of objects; all processes call it together.
      timeout_secs: how long to wait.
      interface: where this process listens, and from which it connects; None = any. Processes of
        one machine use loopback.

    Returns:
      The host of each process, and the connections as `admission.join` returns them.

    Raises:
      MembershipError: names the processes that did not join or cannot be reached.
    """
    with _ending_after(timeout_secs, rank):
        hosts = gather(socket.gethostname())
        secret = gather(secrets.token_hex(run_secret.NONCE_BYTES))[0].encode()
        on_one_machine = len(set(gather(_network()))) == 1
        interface = None if on_one_machine else interface
        own = _LOOPBACK if on_one_machine else ""
        listening = None if rank else listen(own, 0, interface=interface)
        found = _addresses_of(listening, on_one_machine, interface) if listening else None
        addresses = gather(found)[0]
    config = ConnectConfig(
        hosts, rank, timeout_secs=timeout_secs, secret=secret, interface=interface
    )
    return hosts, receive_all(config, listening) if listening else reach_chief(config, addresses)


@contextlib.contextmanager
def _ending_after(timeout_secs: float, rank: int) -> Iterator[None]:
    """Ends this process if the block takes too long; the launcher then ends the others."""
    text = f"worker {rank} ends: not all workers joined within {timeout_secs:g} s"
    timer = threading.Timer(timeout_secs, end_process, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _addresses_of(
    listening: socket.socket, on_one_machine: bool, interface: Interface | None
) -> list[str]:
    host, port, *_ = listening.getsockname()
    if on_one_machine or interface:
        return [host_and_port(host, port)]
    return [f"{name}:{port}" for name in (socket.gethostname(), *_own_addresses())]


def _network() -> str:
    """Returns a text that is equal in processes that share a loopback address."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _own_addresses() -> list[str]:
    """Returns this machine's IPv4 addresses, for when its name does not resolve."""
    addresses = (address for each in interfaces.found() for address in each.addresses)
    return [each for each in addresses if ":" not in each and not is_loopback_address(each)]
