"""Processes of torchrun meet, between threads of this process."""

import pytest

from terngrad.cluster.managed import torchrun
from terngrad.cluster.managed.role import ManagedError
from terngrad.testing.addresses import free_ports
from terngrad.testing.threads import TIMEOUT, in_threads


@pytest.fixture
def master():
    (port,) = free_ports(1)
    return {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port - 1000), "WORLD_SIZE": "3"}


def roles(master, ps_tasks):
    environments = [master | {"RANK": str(rank)} for rank in range(3)]
    calls = (lambda e=e: torchrun.role(e, ps_tasks, TIMEOUT) for e in environments)
    return in_threads(*calls)


def test_all_learn_where_all_listen(master):
    found = roles(master, 0)
    assert [role.task_id for role in found] == [0, 1, 2]
    (hosts,) = {role.worker_hosts for role in found}
    assert len(set(hosts)) == 3
    assert all(host.startswith("localhost:") for host in hosts)
    assert len({role.control_port for role in found}) == 1
    assert str(found[2]) == "torchrun: worker 2 of 3"


def test_the_first_are_the_ps(master):
    ps, *workers = roles(master, 1)
    assert (ps.job_name, ps.task_id, len(ps.ps_hosts)) == ("ps", 0, 1)
    assert [(role.job_name, role.task_id) for role in workers] == [("worker", 0), ("worker", 1)]
    assert {role.control_port for role in workers} == {None}


def test_a_missing_process_is_named(master):
    with pytest.raises(ManagedError, match=r"torchrun: worker 1 .*, worker 2 .* not join"):
        torchrun.role(master | {"RANK": "0"}, 0, 0.2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"RANK": "3"}, "RANK is 3, but WORLD_SIZE 3"),
        ({"RANK": "-1"}, "the variable RANK is '-1', not a whole number"),
        ({"RANK": "1", "MASTER_ADDR": "no-such-host.invalid"}, "no-such-host.invalid"),
        ({"RANK": "1", "MASTER_ADDR": "a..b"}, "torchrun: MASTER_ADDR: 'a..b' cannot be a host"),
        ({"RANK": "1", "MASTER_PORT": "99999"}, "MASTER_PORT is 99999; allowed are 1 to 65535"),
        ({"RANK": "1", "MASTER_PORT": "0"}, "MASTER_PORT is 0; allowed are 1 to 65535"),
    ],
)
def test_what_does_not_fit_is_named(master, change, why):
    with pytest.raises(ManagedError, match=why):
        torchrun.role(master | change, 0, 0.2)
