"""Roles of processes that terngrad.launch started."""

import pytest

from terngrad.cluster.managed import launch_variables
from terngrad.cluster.managed.find import find
from terngrad.cluster.managed.role import ManagedError

HOSTS = ["a:1", "b:2"]
GIVEN = launch_variables.variables(HOSTS, 1, 3)


def test_a_process_learns_what_the_launcher_knows_before_what_surrounds_it():
    role = find(GIVEN | {"TF_CONFIG": "{}", "SLURM_JOB_ID": "1"}, 0, 1.0)
    assert str(role) == "terngrad.launch: worker 1 of 2"
    assert (role.worker_hosts, role.task_id, role.control_port) == (("a:1", "b:2"), 1, 3)
    ps = launch_variables.role(launch_variables.variables(HOSTS, 0, 3, ["c:4"], "ps"))
    assert str(ps) == "terngrad.launch: ps 0 of 1, for 2 workers"
    assert ps.control_port is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"TERNGRAD_HOSTS": "a:1,b"}, "TERNGRAD_HOSTS: 'b' must be host:port"),
        ({"TERNGRAD_RANK": "2"}, "TERNGRAD_RANK is 2; the job worker has 2 processes"),
        ({"TERNGRAD_RANK": "x"}, "TERNGRAD_RANK is 'x', not a whole number"),
        ({"TERNGRAD_CONTROL_PORT": "0"}, "TERNGRAD_CONTROL_PORT is 0; allowed are 1 to 65535"),
        ({"TERNGRAD_JOB": "chief"}, "TERNGRAD_JOB is 'chief'; allowed are worker and ps"),
    ],
)
def test_what_does_not_fit_is_named(change, why):
    with pytest.raises(ManagedError, match=why):
        launch_variables.role(GIVEN | change)
