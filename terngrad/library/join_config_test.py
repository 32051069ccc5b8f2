"""What a process needs to connect, from how it joins."""

import dataclasses
import ssl
from pathlib import Path

import pytest

from terngrad.cluster import interfaces, run_secret
from terngrad.cluster.managed.role import Role
from terngrad.connect.certificates import serial_of
from terngrad.library import own_server, own_server_process
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
    assert connect.tls is None


@pytest.mark.parametrize("allowed", [False, True])
def test_without_certificates_others_reach_a_process_only_where_all_may(allowed, tmp_path):
    plain = dataclasses.replace(joining(), allow_insecure_network=allowed)
    assert plain.connect.only_here == (not allowed)
    assert not dataclasses.replace(plain, tls=make_certificates(tmp_path, "a", "all")).only_here
    assert not dataclasses.replace(joining(worker_hosts=WORKERS[:1])).only_here  # is alone


@pytest.mark.parametrize(
    ("role", "checks"),
    [
        ({"ps_hosts": SERVERS}, False),
        ({"ps_hosts": SERVERS, "job_name": "ps"}, True),
        ({}, True),
    ],
    ids=["a worker of parameter servers", "a parameter server", "a worker of an all-reduce"],
)
def test_who_checks_whether_a_certificate_is_revoked(role, checks, tmp_path):
    tls = make_certificates(tmp_path, "ours", "all")
    shown = ssl.PEM_cert_to_DER_cert(Path(tls.cert).read_text())
    denied = tmp_path / "denied.txt"
    denied.write_text(f"{serial_of(shown):X}\n")
    config = joining(dataclasses.replace(tls, deny=str(denied)), **role)
    assert bool(config.connect.tls.revocation(shown)) == checks
    if not config.role.ps_hosts:  # then its ps are workers, too
        assert config.with_own_servers().connect.tls.revocation(shown)


def test_the_server_of_a_worker_uses_the_interface_of_the_worker(monkeypatch):
    monkeypatch.setenv(interfaces.VARIABLE, "another")
    (lo,) = (each for each in interfaces.found() if "127.0.0.1" in each.addresses)
    config = dataclasses.replace(joining(), elastic=True, network_interface=lo.name)
    server = own_server_process._read(own_server._written(config.with_own_servers()))
    assert server.role.job_name == "ps"
    assert server.connect.interface == config.connect.interface == lo


def test_workers_of_an_elastic_all_reduce_compare_whether_they_have_kernels():
    """One that has none waits for no mesh: it and the others would wait for each other for ever."""
    config = dataclasses.replace(joining(), elastic=True).with_own_servers()
    lacking = dataclasses.replace(config, lacks_kernels=True)
    assert str(lacking.rules) == f"{config.rules}, no native kernels"
    server = own_server_process._read(own_server._written(lacking))
    assert str(server.rules) == str(lacking.rules)


def test_law_10_an_interface_that_is_none_is_named_by_where_it_was_given(monkeypatch):
    config = dataclasses.replace(joining(), network_interface="none")
    with pytest.raises(ValueError, match=r"^join: network_interface is 'none': allowed are .*lo"):
        config.check()
    monkeypatch.setenv(interfaces.VARIABLE, "no")
    with pytest.raises(ValueError, match=r"^join: TERNGRAD_INTERFACE is 'no': allowed are .*lo"):
        joining().check()


def test_law_10_more_hosts_than_a_process_can_list_to_another_are_named():
    hosts = tuple(f"127.0.0.1:{port}" for port in range(10000, 12000))
    config = joining(worker_hosts=hosts)
    config.check()
    elastic = dataclasses.replace(config, elastic=True).with_own_servers()
    why = "^join: hosts is '127.0.0.1:10000,...': the list of 4000 hosts .*; each worker counts"
    with pytest.raises(ValueError, match=why):
        elastic.check()


def test_the_log_names_the_addresses_of_the_interface():
    said = []
    local = ("127.0.0.1:1", "127.0.0.1:2")
    config = dataclasses.replace(
        joining(worker_hosts=local), network_interface="lo", say=said.append
    )
    config.log_interface()
    config = dataclasses.replace(config, role=joining(ps_hosts=("127.0.0.1:3",)).role)
    config.log_interface()
    joining().log_interface()
    assert said[0].startswith("worker 0 (127.0.0.1:1) listens at 127.0.0.1 and connects from ")
    assert said[1].startswith("worker 0 (one:1) connects from 127.0.0.1")
    assert len(said) == 2
