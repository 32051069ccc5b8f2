"""Addresses of this machine at which a test may listen."""

from terngrad.cluster.addresses import free_ports, host_and_port


def free_address(host: str = "127.0.0.1") -> str:
    """Returns HOST:PORT with a free port; OSError if this machine does not have the host."""
    return host_and_port(host, free_ports(1, host)[0])


def free_addresses(count: int) -> list[str]:
    """Returns `count` addresses 127.0.0.1:PORT with different free ports."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]
