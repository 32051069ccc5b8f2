"""What ends a process within `join` before it has met the others: these learn why."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from terngrad.cluster import admission
from terngrad.cluster.channel import MembershipError, OtherFailedError, name_of
from terngrad.cluster.managed.role import Role
from terngrad.cluster.membership import end_because_of_another, reason_of
from terngrad.exchange.parameter_server import early_failure
from terngrad.library.roles import control_address, rules_of
from terngrad.service.members import Members
from terngrad.service.security import Tls


@contextlib.contextmanager
def told_to_others(
    role: Role, timeout_secs: float, tls: Tls | None, secret: bytes
) -> Iterator[None]:
    """Tells the others why the block fails; it ends before this process joins them.

    Args:
      role: of this process; the others of a launcher that connects them end by that launcher.
      timeout_secs: how long to wait for those that start later.
      tls: certificates that are right; None = plain text is allowed.
      secret: that all share; b"" = none.
    """
    try:
        yield
    except MembershipError:  # it comes from the others
        raise
    except Exception as error:
        hosts, rank, why = role.worker_hosts, role.task_id, reason_of(error)
        if len(hosts) < 2 or role.job_name == "ps":
            raise
        told = f"tells the others first, for at most {timeout_secs:g} s"
        print(f"{name_of(rank, hosts)} {told}: {why}", file=sys.stderr, flush=True)
        if role.ps_hosts:
            rules = rules_of(role, timeout_secs)
            early_failure.tell(role.ps_hosts, hosts, rank, why, rules, timeout_secs, tls, secret)
        else:
            with contextlib.suppress(ValueError):  # as this, wrong alike in all of them
                members, address = Members(tls) if tls else None, control_address(role)
                admission.tell_failure(hosts, rank, address, why, timeout_secs, members, secret)
        raise


@contextlib.contextmanager
def ending_if_told(role: Role) -> Iterator[None]:
    """Ends this process if it learns in the block that another has failed, whom a launcher blames.

    Its last line is the reason.
    """
    try:
        yield
    except OtherFailedError as error:
        end_because_of_another(f"{name_of(role.task_id, role.worker_hosts)} ends: {error}")
