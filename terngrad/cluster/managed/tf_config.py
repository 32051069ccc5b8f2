"""TF_CONFIG: the JSON text by which Kubeflow's TFJob and Vertex AI describe a cluster."""

from __future__ import annotations

import json
from typing import Any

from terngrad.cluster.managed.role import ManagedError, Role, check_hosts, parsed_number

_SOURCE = "TF_CONFIG"
_CHIEFS = ("chief", "master")  # two names of the worker that writes the checkpoints
_JOBS = (*_CHIEFS, "worker", "ps")


def role(text: str) -> Role | None:
    """Reads TF_CONFIG. A chief counts as worker 0, before the others.

    Returns:
      The role of this process; None where the text is {} or its cluster is: not distributed.

    Raises:
      ManagedError: the text does not name a worker or ps and where all are.
    """
    found = _parsed(text)
    if found == {} or (isinstance(found, dict) and found.get("cluster") == {}):
        return None
    cluster, task = _part(found, "cluster"), _part(found, "task")
    hosts = {job: _hosts(cluster, job) for job in _JOBS}
    chiefs = [host for job in _CHIEFS for host in hosts[job]]
    if len(chiefs) > 1:
        raise ManagedError(f"{_SOURCE}: {' and '.join(chiefs)} are chiefs; allowed is one")
    workers = (*chiefs, *hosts["worker"])
    check_hosts(_SOURCE, (*workers, *hosts["ps"]))
    kind = task.get("type")
    if not isinstance(kind, str) or kind not in hosts:
        why = "evaluate with a program of its own" if kind == "evaluator" else "it is not known"
        raise ManagedError(f"{_SOURCE}: task type {kind!r:.60} does not train: {why}")
    index = _index(task)
    if index >= len(hosts[kind]):
        raise ManagedError(f"{_SOURCE}: task {kind} {index} is not in its cluster")
    return Role(
        source=_SOURCE,
        job_name="ps" if kind == "ps" else "worker",
        task_id=index + (len(chiefs) if kind == "worker" else 0),
        size=len(workers),
        worker_hosts=workers,
        ps_hosts=hosts["ps"],
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ManagedError(f"{_SOURCE} is too deeply nested") from None
    except ValueError as error:  # not JSON, or a number of over 4,300 digits
        raise ManagedError(f"{_SOURCE} is not JSON: {error}") from None


def _part(found: Any, name: str) -> dict[str, Any]:
    part = found.get(name) if isinstance(found, dict) else None
    if not isinstance(part, dict):
        raise ManagedError(f"{_SOURCE} has no {name!r}")
    return part


def _hosts(cluster: dict[str, Any], job: str) -> tuple[str, ...]:
    hosts = cluster.get(job, [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise ManagedError(f"{_SOURCE}: {job!r} must list HOST:PORT of each {job}")
    return tuple(hosts)


def _index(task: dict[str, Any]) -> int:
    index = task.get("index")
    text = str(index) if isinstance(index, int | str) else repr(index)  # some write it as text
    return parsed_number(text, f"{_SOURCE}: task index")
