"""Reports to the other processes why this one ends before it has joined them.

A process reports to all that cannot train without it. With asynchronous parameter servers only
worker 0 is needed. Processes of mpirun and horovodrun report nothing: the launcher ends them all.
TensorFlow is not loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

from terngrad.cluster import admission
from terngrad.cluster.addresses import name_of
from terngrad.cluster.errors import LONGEST_REASON, MembershipError, OtherFailedError
from terngrad.cluster.managed.role import LAUNCHED
from terngrad.cluster.membership import end_because_of_another, reason_of
from terngrad.connect.calling import ChannelOpener
from terngrad.connect.introduction import COORDINATION
from terngrad.library import own_server
from terngrad.library.join_config import JoinConfig

_NOTHING = contextlib.nullcontext()
_STOP_SECS = 2.0  # for a process that was asked to end


@contextlib.contextmanager
def reporting_failure(config: JoinConfig) -> Iterator[None]:
    """Reports to the others why the block fails, which ends before this process joins them."""
    try:
        yield
    except (MembershipError, SystemExit):  # the former comes from the others
        raise
    except BaseException as error:
        _report(config, error)
        raise


@contextlib.contextmanager
def ending_on_report(config: JoinConfig) -> Iterator[None]:
    """Ends this process if another one has failed, with the reason as its last line.

    A launcher then blames the other process.
    """
    try:
        yield
    except OtherFailedError as error:
        role = config.role
        end_because_of_another(f"{name_of(role.task_id, role.worker_hosts)} ends: {error}")


def _report(config: JoinConfig, error: BaseException) -> None:
    """Reports to the others why this process ends; waits for those that start later."""
    role = config.role
    hosts, rank = role.worker_hosts, role.task_id
    is_needed = config.synchronous or rank == 0
    is_worker = role.job_name == "worker" and role.engine not in LAUNCHED
    if not (is_worker and is_needed and len(hosts) > 1):
        return
    try:
        config.check()
        connect = config.connect
        address = "" if role.ps_hosts else config.control_address
    except (ValueError, OSError):  # the others would refuse its report
        return
    why, secs = reason_of(error), config.timeout_secs
    secs = secs if isinstance(error, Exception) else min(secs, _STOP_SECS)
    with contextlib.suppress(OSError):
        action = f"tells the others first, for at most {secs:g} s"
        config.say(f"{connect.name} {action}: {why}")
    if role.ps_hosts:
        starts = config.has_own_servers and rank == 0  # else no server would get it
        with contextlib.suppress(ValueError), own_server.started(config) if starts else _NOTHING:
            notify_servers(config, why, secs)
    else:
        admission.report_failure(dataclasses.replace(connect, timeout_secs=secs), address, why)


def notify_servers(config: JoinConfig, why: str, secs: float) -> None:
    """Reports to parameter servers why this worker ends before it has joined; they pass it on.

    Args:
      config: of this worker.
      why: the reason.
      secs: how long to wait for servers that start later.
    """
    # Only parameter servers need protobuf.
    from terngrad.asynchronous.messages import BYE, frames
    from terngrad.service.messages import LONGEST_RESULT, Call, Report

    connect, why = dataclasses.replace(config.connect, timeout_secs=secs), why[:LONGEST_REASON]
    if config.synchronous:  # ps 0 coordinates
        servers, purpose, rules = range(1), COORDINATION, str(config.rules)
        messages = [Report(failed=why).SerializeToString()]
    else:
        servers, purpose, rules = range(len(connect.ps_hosts)), "Update", ""
        messages = [*frames(Call(act=BYE, failed=why))]

    def send(ps: int) -> None:
        ChannelOpener(connect, purpose, ps, LONGEST_RESULT, rules).send_last(messages)

    # A signal ends this process at once: nothing waits for a daemon.
    threads = [threading.Thread(target=send, args=(ps,), daemon=True) for ps in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
