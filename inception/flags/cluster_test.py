"""What a worker's flags may be."""

import pytest

from inception.flags.cluster import ClusterConfig


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "flag --worker_hosts=: must list HOST:PORT of each worker"),
        ({"worker_hosts": ("a:1", "a")}, "'a' must be host:port"),
        ({"worker_hosts": ("a:1", "::1:2")}, "an IPv6 address must be in brackets"),
        ({"worker_hosts": ("a:1", "a:1")}, "each HOST:PORT must be listed once"),
        ({"worker_hosts": ("a:1", "b:1"), "task_id": 2}, "flag --task_id=2: must be 0 to 1"),
        (
            {"worker_hosts": ("a:65000", "b:1")},
            "flag --control_port=-1: must be 1 to 65535; -1 = the chief's own [+] 1000 is 66000",
        ),
        ({"worker_hosts": ("a:1",), "control_port": 65536}, "flag --control_port=65536: must be 1"),
        (
            {"worker_hosts": ("a:1", "b:1"), "control_port": 1},
            "flag --control_port=1: a:1 is the port of worker 0; must be a free port",
        ),
        (
            {"worker_hosts": ("a:1", "a:1001")},
            "flag --control_port=-1: a:1001 is the port of worker 1; must be a free port",
        ),
        ({"worker_hosts": ("a:1",), "worker_timeout_secs": 1e300}, "must be a number > 0 and <= "),
        (
            {"variable_update": "mpi", "task_id": 1},
            "flag --task_id=1: must not be set with --variable_update=",
        ),
        (
            {"variable_update": "mpi", "control_port": 2222},
            "flag --control_port=2222: must not be set.*: mpirun names the workers",
        ),
        (
            {"variable_update": "mpi", "worker_hosts": ("a:1",)},
            "flag --worker_hosts=a:1: must not be set.*: mpirun",
        ),
    ],
)
def test_law_10_flags_that_cannot_be_are_named_with_what_is_allowed(flags, text):
    with pytest.raises(ValueError, match=text):
        ClusterConfig(**flags)


@pytest.mark.parametrize(
    ("host", "control_port", "address"),
    [
        ("a:2222", -1, "a:3222"),
        ("a:64535", -1, "a:65535"),
        ("a:65000", 7, "a:7"),
        ("[::1]:2222", -1, "[::1]:3222"),
    ],
)
def test_the_chief_hears_of_the_others_at_its_own_host(host, control_port, address):
    cluster = ClusterConfig(worker_hosts=(host, "b:1"), control_port=control_port)
    assert cluster.control_address == address
