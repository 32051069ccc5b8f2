"""What ends a process within `join` before it has met the others."""

import re
import sys
import threading
import time

import pytest

from terngrad.cluster import run_secret
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.managed.role import Role
from terngrad.connect.config import ConnectConfig
from terngrad.exchange.parameter_server.server.arithmetic import PackedArithmetic
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.library.failures import notify_servers
from terngrad.library.join_config import JoinConfig
from terngrad.ops.packing import ReferencePacking
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started
from terngrad.testing.threads import in_threads

SECS = HANG_SECS
WORKERS = ("one:1", "two:2", "three:3")
WHY = "worker 0 (one:1) failed: --train_dir=/x: is not writable"
LATE = "workers that have not connected yet are informed."
PROGRAM = """
import os
import terngrad
wrong = os.environ["TERNGRAD_RANK"] == {wrong!r}
engine = {engine!r} if wrong else "auto"
terngrad.join(engine=engine, timeout_secs=900).barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "options", "engine", "why"),
    [
        ("0", [], "parameter_server", "join: engine='parameter_server' needs ps_hosts"),
        pytest.param(
            "1",
            ["--ps", "1"],
            "collective",
            "join: engine='collective' must not have ps_hosts",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_law_10_an_error_in_join_is_reported_to_the_others(tmp_path, wrong, options, engine, why):
    program = tmp_path / "program.py"
    # A ps has a rank of its own.
    program.write_text(
        PROGRAM.format(wrong=wrong, engine=engine).replace(
            "wrong =", "wrong = os.environ.get('TERNGRAD_JOB') != 'ps' and"
        )
    )
    command = [sys.executable, "-m", "terngrad.launch", "-n", "2", *options, str(program)]
    with Started(command) as run:
        assert run.finish(), run.output
    other = "10"[int(wrong)]
    reported = rf"worker {wrong} \(.*\) failed: {re.escape(why)}"
    assert re.search(rf"^\[{other}\] worker {other} \(.*\) ends: {reported}$", run.output, re.M)
    assert f"[{wrong}] {why}" in run.output


def chief_of(host):
    """How worker 0 joins."""
    role = Role(source="test", task_id=0, size=3, worker_hosts=WORKERS, ps_hosts=(host,))
    return JoinConfig(role=role, timeout_secs=SECS)


def test_law_10_a_ps_runs_until_all_workers_know_why_one_failed_before_joining(
    monkeypatch,
):
    (host,) = free_addresses(1)
    secret, waits = b"a secret of many characters", threading.Event()
    monkeypatch.setenv(run_secret.VARIABLE, secret.decode())
    chief = chief_of(host)
    note = lambda line: waits.set() if line == f"{WHY}; {LATE}" else None
    arithmetic = PackedArithmetic(ReferencePacking())
    config = lambda rank: ConnectConfig(WORKERS, rank, [host], SECS, secret=secret)
    server = Server(config(0), arithmetic, chief.rules, log=note)
    server.start(host)

    def fail():
        notify_servers(chief, "--train_dir=/x: is not writable", SECS)

    def join_late(worker):
        assert waits.wait(SECS)  # the ps, for this one
        with pytest.raises(MembershipError) as raised:  # while it connects, or thereafter
            Client(config(worker)).coordination.next_view(0, is_live=False)
        return str(raised.value)

    try:
        outcome, *others = in_threads(server.wait, lambda: join_late(1), lambda: join_late(2), fail)
    finally:
        server.close()
    assert [outcome, *others[:2]] == [WHY] * 3


def test_a_worker_whose_ps_never_comes_gives_up_after_the_time_out():
    began = time.monotonic()
    notify_servers(chief_of(*free_addresses(1)), "why", 0.1)
    assert time.monotonic() - began >= 0.1
