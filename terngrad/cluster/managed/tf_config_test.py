"""Roles from TF_CONFIG."""

import json

import pytest

from terngrad.cluster.managed import tf_config
from terngrad.cluster.managed.role import ManagedError

CLUSTER = {
    "chief": ["job-chief-0.default.svc:2222"],
    "worker": ["job-worker-0.default.svc:2222", "job-worker-1.default.svc:2222"],
    "ps": ["job-ps-0.default.svc:2222"],
    "evaluator": ["job-evaluator-0.default.svc:2222"],
}


def text_of(kind, index, cluster=CLUSTER):
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


@pytest.mark.parametrize(
    ("kind", "index", "job", "task_id"),
    [("chief", 0, "worker", 0), ("worker", 1, "worker", 2), ("ps", "0", "ps", 0)],
)
def test_a_task_of_a_cluster_with_a_chief_knows_its_role(kind, index, job, task_id):
    role = tf_config.role(text_of(kind, index))
    assert (role.job_name, role.task_id, role.size) == (job, task_id, 3)
    assert role.worker_hosts == (*CLUSTER["chief"], *CLUSTER["worker"])
    assert role.ps_hosts == tuple(CLUSTER["ps"])


def test_without_a_chief_worker_0_is_the_first():
    role = tf_config.role(text_of("worker", 0, {"worker": ["a:1", "b:1"]}))
    assert str(role) == "TF_CONFIG: worker 0 of 2"
    assert role.settings == {
        "job_name": "worker",
        "task_id": 0,
        "worker_hosts": ("a:1", "b:1"),
        "ps_hosts": (),
    }


@pytest.mark.parametrize(
    "text",
    ["{}", " {} ", '{"cluster": {}}', '{"cluster": {}, "task": {"type": "worker", "index": 0}}'],
)
def test_an_empty_cluster_says_not_distributed(text):
    assert tf_config.role(text) is None


MASTER = {"master": ["a:1"], "worker": ["b:1"]}


def test_a_chief_may_be_called_master():
    assert tf_config.role(text_of("master", 0, MASTER)).task_id == 0
    assert tf_config.role(text_of("worker", 0, MASTER)).task_id == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "TF_CONFIG is not JSON: Expecting property name"),
        ("[" * 100_000, "TF_CONFIG is too deeply nested"),
        ("9" * 5000, "TF_CONFIG is not JSON: Exceeds the limit"),
        ("[]", "has no 'cluster'"),
        ("null", "has no 'cluster'"),
        ('{"task": {}}', "has no 'cluster'"),
        ('{"cluster": null}', "has no 'cluster'"),
        ('{"cluster": {"worker": ["a:1"]}}', "has no 'task'"),
        (text_of(["worker"], 0), r"task type \['worker'\] does not train: it is not known"),
        (text_of({"worker": 1}, 0), r"task type \{'worker': 1\} does not train"),
        (text_of(None, 0), "task type None does not train"),
        (text_of("evaluator", 0), "'evaluator' does not train: evaluate with a program of its own"),
        (text_of("other", 0), "'other' does not train: it is not known"),
        (text_of("worker", 2), "task worker 2 is not in its cluster"),
        (text_of("chief", 0, {"worker": ["a:1"]}), "task chief 0 is not in its cluster"),
        (text_of("master", 0), "task master 0 is not in its cluster"),
        (text_of("chief", 0, {"chief": ["a:1"], "master": ["b:1"]}), "a:1 and b:1 are chiefs"),
        (text_of("chief", 1, {"chief": ["a:1", "b:1"]}), "a:1 and b:1 are chiefs; allowed is one"),
        (text_of("worker", None), "task index is 'None', not a whole number"),
        (text_of("worker", "1" * 5000), "task index is '1+.*, not a whole number"),
        (text_of("worker", [0]), r"task index is '\[0\]', not a whole number"),
        (text_of("worker", True), "task index is 'True', not a whole number"),
        (text_of("worker", 0, {"worker": ["a"]}), "TF_CONFIG: 'a' must be host:port"),
        (text_of("worker", 0, {"worker": ["a..b:1"]}), "TF_CONFIG: 'a..b' cannot be a host"),
        (text_of("worker", 0, {"worker": [f"a:{'1' * 5000}"]}), "must be host:port"),
        (text_of("worker", 0, {"worker": ["a:1", "a:1"]}), "each HOST:PORT must be listed once"),
        (text_of("worker", 0, {"worker": {"1": "a:1"}}), "'worker' must list HOST:PORT"),
    ],
)
def test_an_invalid_tf_config_says_what_is_wrong(text, why):
    with pytest.raises(ManagedError, match=why):
        tf_config.role(text)
