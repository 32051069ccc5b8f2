"""torchrun: its variables name one address, where all processes exchange their own addresses."""

from __future__ import annotations

from collections.abc import Mapping

from terngrad.cluster import admission, interfaces, run_secret
from terngrad.cluster.addresses import (
    LAST_PORT,
    check_host,
    host_and_port,
    is_loopback_address,
    unreserved_ports,
)
from terngrad.cluster.admission import Peer
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.managed.role import ManagedError, Role, port_number, ranked, whole_number
from terngrad.connect.config import ConnectConfig

MARKS = frozenset(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
_SOURCE = "torchrun"
_ABOVE = 1000  # torchrun itself listens at MASTER_PORT


def role(
    environment: Mapping[str, str], ps_tasks: int, timeout_secs: float, network_interface: str = ""
) -> Role:
    """Returns the role of a process, once all have connected; the first are parameter servers.

    They connect at MASTER_ADDR, 1000 ports above MASTER_PORT (below, where there is none above),
    whatever the interface, and exchange the addresses that they then use.

    Raises:
      ManagedError: a variable is wrong, or a process did not come within the time.
    """
    number = lambda name: whole_number(_SOURCE, name, environment[name])
    rank, size = number("RANK"), number("WORLD_SIZE")
    port = port_number(_SOURCE, "MASTER_PORT", environment["MASTER_PORT"])
    if rank >= size:
        raise ManagedError(f"{_SOURCE}: RANK is {rank}, but WORLD_SIZE {size}")
    master = environment["MASTER_ADDR"]
    rendezvous_port = port + _ABOVE if port + _ABOVE <= LAST_PORT else port - _ABOVE
    own, control = unreserved_ports(2)
    try:
        check_host(master)
        own_host = interfaces.published(master, network_interface, environment)
    except OSError as error:
        raise ManagedError(f"{_SOURCE}: MASTER_ADDR {master!r}: {error.strerror}") from None
    except MembershipError as error:
        raise ManagedError(f"{_SOURCE}: MASTER_ADDR: {error}") from None
    except ValueError as error:
        name = network_interface or environment[interfaces.VARIABLE]
        raise ManagedError(f"the network interface is {name!r}: {error}") from None
    mine = {"host": own_host, "port": own, "control": control}
    try:
        secret = run_secret.shared(environment)
        places = _gathered(
            rank, size, host_and_port(master, rendezvous_port), mine, timeout_secs, secret
        )
    except ValueError as error:
        raise ManagedError(f"{_SOURCE}: {error}") from None
    hosts = [master if is_loopback_address(place["host"]) else place["host"] for place in places]
    ports = [place["port"] for place in places]
    addresses = list(map(host_and_port, hosts, ports))
    return ranked(_SOURCE, rank, addresses, ps_tasks, places[0]["control"])


def _gathered(
    rank: int, size: int, address: str, mine: dict, timeout_secs: float, secret: bytes
) -> list[dict]:
    """The address of each process, by rank."""
    hosts = [_SOURCE] * size
    config = ConnectConfig(hosts, rank, timeout_secs=timeout_secs, secret=secret)
    peers = admission.join(config, address)
    try:
        if rank:
            peers[0].send(mine)
            return _received(peers[0])["places"]
        places = [mine, *(_received(peers[other]) for other in range(1, size))]
        for peer in peers.values():
            peer.send({"places": places})
        return places
    finally:
        for peer in peers.values():
            peer.close()


def _received(peer: Peer) -> dict:
    message = peer.receive()
    if message is None:
        during = "while the processes exchanged their addresses"
        raise MembershipError(f"process {peer.rank} was lost {during}")
    return message
