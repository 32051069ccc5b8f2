"""How processes meet if a launcher (mpirun, horovodrun) started and already connected them.

When a process is lost, their engine ends or waits forever and does not say which one. So they open
a second channel, at a free port that the chief picks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from terngrad.cluster import run_secret
from terngrad.cluster.addresses import listen
from terngrad.cluster.admission import reach_chief, receive_all
from terngrad.cluster.membership import end_process
from terngrad.cluster.peer import Peer
from terngrad.connect.config import ConnectConfig

_SIOCGIFADDR = 0x8915  # Linux: address of a network interface
_LOOPBACK = "127.0.0.1"

OPEN_MPI = "OMPI_COMM_WORLD_SIZE"  # set by Open MPI's mpirun
# Number of processes started, by launcher: horovodrun with Gloo, Open MPI, MPICH and derivatives.
_COUNTS = ("HOROVOD_SIZE", OPEN_MPI, "PMI_SIZE")

Gather = Callable[[Any], list[Any]]  # returns the objects of all processes, in process order


def misfit(size: int, environment: Mapping[str, str]) -> str:
    """Returns why `size` connected processes are not all that the launcher started; "" if they are.

    If the launcher belongs to another library than the processes use, each process runs alone.
    """
    count = next((environment[name] for name in _COUNTS if name in environment), None)
    if count is None:
        return "" if size > 1 else "no launcher started this process"
    return "" if int(count) == size else f"{count} processes were started, but this one sees {size}"


def join(rank: int, gather: Gather, timeout_secs: float) -> tuple[list[str], dict[int, Peer]]:
    """Meets the other processes; returns when all have joined.

    Args:
      rank: index of this process.
      gather: an all-gather of objects; all processes call it together.
      timeout_secs: how long to wait.

    Returns:
      The host of each process, and the connections as `admission.join` returns them.

    Raises:
      MembershipError: names the processes that did not join or cannot be reached.
    """
    with _ending_after(timeout_secs, rank):
        hosts = gather(socket.gethostname())
        secret = gather(secrets.token_hex(run_secret.NONCE_BYTES))[0].encode()
        on_one_machine = len(set(gather(_network()))) == 1
        listener = None if rank else listen(_LOOPBACK if on_one_machine else "", 0)
        addresses = gather(_addresses_of(listener, on_one_machine) if listener else None)[0]
    config = ConnectConfig(hosts, rank, timeout_secs=timeout_secs, secret=secret)
    return hosts, receive_all(config, listener) if listener else reach_chief(config, addresses)


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


def _addresses_of(listener: socket.socket, on_one_machine: bool) -> list[str]:
    names = [_LOOPBACK] if on_one_machine else [socket.gethostname(), *_own_addresses()]
    port = listener.getsockname()[1]
    return [f"{name}:{port}" for name in names]


def _network() -> str:
    """Returns a text that is equal in processes that share a loopback address."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _own_addresses() -> list[str]:
    """Returns this machine's IPv4 addresses, for when its name does not resolve; Linux only."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(s, _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue
            found.append(socket.inet_ntoa(reply[20:24]))
    return [address for address in found if not address.startswith("127.")]
