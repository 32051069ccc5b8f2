"""What a process needs to connect, from how it joins."""

import dataclasses
import ssl
from pathlib import Path

import pytest

from terngrad.cluster import run_secret
from terngrad.cluster.managed.role import Role
from terngrad.connect.certificates import serial_of
from terngrad.library.join_config import JoinConfig
from terngrad.testing.certificates import make_certificates

WORKERS, SERVERS = ("one:1", "two:2"), ("ps:3",)
SECRET = "a secret of many characters"


def joining(tls=None, **role):
    kinds = {"source": "test", "task_id": 0, "size": 2, "worker_hosts": WORKERS}
    return JoinConfig(role=Role(**kinds | role), timeout_secs=7.0, tls=tls)


def test_a_hello_says_what_the_process_was_started_with(monkeypatch):
    monkeypatch.setenv(run_secret.VARIABLE, SECRET)
    connect = joining(task_id=1, ps_hosts=SERVERS).connect
    hello = connect.hello("Exchange", 0, "rules")
    assert (hello.purpose, hello.worker, hello.callee, hello.rules) == ("Exchange", 1, 0, "rules")
    assert (hello.worker_hosts, hello.ps_hosts) == ([*WORKERS], [*SERVERS])
    assert hello.timeout_secs == 7.0
    assert connect.secret == SECRET.encode()
    assert connect.name == "worker 1 (two:2)"
    assert connect.members is None


@pytest.mark.parametrize(
    ("role", "checks"),
    [
        ({"ps_hosts": SERVERS}, False),
        ({"ps_hosts": SERVERS, "job_name": "ps"}, True),
        ({}, True),
    ],
    ids=["a worker of parameter servers", "a parameter server", "a worker of an all-reduce"],
)
def test_who_checks_whether_a_certificate_is_withdrawn(role, checks, tmp_path):
    tls = make_certificates(tmp_path, "ours", "all")
    shown = ssl.PEM_cert_to_DER_cert(Path(tls.cert).read_text())
    denied = tmp_path / "denied.txt"
    denied.write_text(f"{serial_of(shown):X}\n")
    config = joining(dataclasses.replace(tls, deny=str(denied)), **role)
    assert bool(config.connect.members.withdrawal(shown)) == checks
    if not config.role.ps_hosts:  # then its ps are workers, too
        assert config.with_own_servers().connect.members.withdrawal(shown)
