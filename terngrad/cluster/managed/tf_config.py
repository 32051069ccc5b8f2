"""TF_CONFIG: the JSON text by which Kubeflow's TFJob and Vertex AI describe a cluster."""

from __future__ import annotations

import json
from typing import Any

from terngrad.cluster.managed.role import ManagedError, Role

_SOURCE = "TF_CONFIG"
_FIRST = ("chief", "master")  # the worker that writes the checkpoints; one at most is listed


def role(text: str) -> Role:
    """Reads TF_CONFIG. A chief counts as worker 0, before the others.

    Raises:
      ManagedError: the text does not name a worker or ps and where all are.
    """
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ManagedError(f"{_SOURCE} is not JSON: {error}") from None
    cluster, task = _part(found, "cluster"), _part(found, "task")
    chiefs = [host for job in _FIRST for host in _hosts(cluster, job)]
    workers = (*chiefs, *_hosts(cluster, "worker"))
    servers = _hosts(cluster, "ps")
    kind = task.get("type")
    own = {"worker": workers, "ps": servers} | dict.fromkeys(_FIRST, chiefs)
    if kind not in own:
        why = "evaluate with a program of its own" if kind == "evaluator" else "it is not known"
        raise ManagedError(f"{_SOURCE}: task type {kind!r} does not train: {why}")
    index = _index(task) + (len(chiefs) if kind == "worker" else 0)
    if index >= len(own[kind]):
        raise ManagedError(f"{_SOURCE}: task {kind} {_index(task)} is not in its cluster")
    return Role(
        source=_SOURCE,
        job_name="ps" if kind == "ps" else "worker",
        task_id=index,
        size=len(workers),
        worker_hosts=workers,
        ps_hosts=servers,
    )


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
    if str(index).isdecimal():  # some write it as text
        return int(index)
    raise ManagedError(f"{_SOURCE}: task index is {index!r}, not a whole number")
