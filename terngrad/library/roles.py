"""What follows from the role of a process: where the chief listens, and the rules of the ps."""

from __future__ import annotations

from terngrad.cluster.channel import CONTROL_PORT_ABOVE, LAST_PORT
from terngrad.cluster.managed.role import Role
from terngrad.coordination.states import Rules


def rules_of(role: Role, timeout_secs: float) -> Rules:
    """Returns the rules that parameter servers and workers must share: all make each step."""
    return Rules(len(role.worker_hosts), elastic=False, timeout_secs=timeout_secs)


def control_address(role: Role) -> str:
    """HOST:PORT at which the chief listens for the others.

    Raises:
      ValueError: there is no such port.
    """
    host, _, port = role.worker_hosts[0].rpartition(":")
    chosen = role.control_port or int(port) + CONTROL_PORT_ABOVE
    if not 0 < chosen <= LAST_PORT:
        raise ValueError(
            f"join: the chief listens at port {chosen}; allowed are 1 to {LAST_PORT}: without "
            f"control_port it is {CONTROL_PORT_ABOVE} above the chief's port in hosts"
        )
    return f"{host}:{chosen}"
