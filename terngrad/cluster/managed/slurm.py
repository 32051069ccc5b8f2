"""Slurm: the tasks of a job step, from the variables that srun sets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from terngrad.cluster.managed.role import ManagedError, Role, ranked, whole_number

MARK = "SLURM_STEP_NODELIST"  # is set by srun only, not in a batch script itself
_FIRST_PORT, _BLOCKS, _BLOCK = 10000, 300, 64  # below the usual range of outgoing connections
_BRACKET = re.compile(r"([^\[\],\s]*)\[([^\[\]]*)\]")  # of a node's name, with the text before it
_NAME = re.compile(rf"(?:{_BRACKET.pattern})+|[^\[\],\s]+")
_LIST = re.compile(rf"[,\s]*(?:{_NAME.pattern})(?:[,\s]+(?:{_NAME.pattern}))*[,\s]*")
_MAX_NAMES = 1 << 16  # of a range, as Slurm allows


def role(environment: Mapping[str, str], ps_tasks: int) -> Role:
    """Returns the role of a task of a step; its first tasks are the parameter servers.

    The ports follow from the ids of job and step, so steps on one node rarely use the same ports.

    Raises:
      ManagedError: a variable is missing or wrong, or the tasks lie on the nodes in an unknown way.
    """
    number = lambda name: whole_number("Slurm", name, environment.get(name))
    job, step, rank = (number(f"SLURM_{name}") for name in ("JOB_ID", "STEP_ID", "PROCID"))
    source = f"Slurm step {job}.{step}"
    nodes = host_names(environment[MARK])
    of_tasks = _nodes_of_tasks(environment, len(nodes))
    _check_own_node(environment, of_tasks, number("SLURM_NODEID"))
    first = _FIRST_PORT + (job + step) % _BLOCKS * _BLOCK
    addresses = []
    for task, node in enumerate(of_tasks):
        port = first + of_tasks[:task].count(node)
        if port == first + _BLOCK - 1:
            raise ManagedError(f"{source} has over {_BLOCK - 1} tasks on {nodes[node]}")
        addresses.append(f"{nodes[node]}:{port}")
    if rank >= len(addresses):
        raise ManagedError(f"{source}: SLURM_PROCID is {rank} of {len(addresses)} tasks")
    return ranked(source, rank, addresses, ps_tasks, control_port=first + _BLOCK - 1)


def host_names(text: str) -> list[str]:
    """Expands a list of nodes, such as "a[1-3,05],b", as `scontrol show hostnames` does.

    Raises:
      ManagedError: the text is no such list.
    """
    if not _LIST.fullmatch(text):
        raise ManagedError(f"Slurm: {text!r} is not a list of nodes")
    return [name for each in _NAME.finditer(text) for name in _expanded(each[0])]


def _expanded(name: str) -> Iterator[str]:
    """Expands a name with brackets, in scontrol's order.

    The last bracket changes fastest; the others follow from the first to the last but one.
    """
    parts = [
        [before + value for value in _values(ranges)] for before, ranges in _BRACKET.findall(name)
    ]
    if not parts:
        yield name
        return
    *others, last = parts
    for *chosen, end in itertools.product(*reversed(others), last):
        yield "".join(reversed(chosen)) + end


def _values(ranges: str) -> list[str]:
    """The numbers between brackets, such as "1-3,05", each with the width of its range's first."""
    values = []
    for each in ranges.split(","):
        found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", each)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        numbers = range(int(first), int(last) + 1)
        if not 0 < len(numbers) <= _MAX_NAMES:
            raise ManagedError(f"Slurm: {each!r} is not a range of nodes")
        values += [f"{value:0{len(first)}}" for value in numbers]
    return values


def _nodes_of_tasks(environment: Mapping[str, str], nodes: int) -> list[int]:
    """Index of each task's node."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts = _counts(text)
    if len(counts) != nodes:
        raise ManagedError(f"Slurm: SLURM_STEP_TASKS_PER_NODE is {text!r} for {nodes} nodes")
    distribution = re.split("[:,]", environment.get("SLURM_DISTRIBUTION", "block"))[0]
    if distribution == "plane":
        plane = environment.get("SLURM_DIST_PLANESIZE")
        return _assigned(counts, whole_number("Slurm", "SLURM_DIST_PLANESIZE", plane) or 1)
    if distribution in ("block", "cyclic"):
        return _assigned(counts, 1 if distribution == "cyclic" else max(counts))
    raise ManagedError(
        f"Slurm: srun --distribution={distribution} is not known; take block or cyclic"
    )


def _counts(text: str) -> list[int]:
    """Numbers of a text such as "2(x3),1", which stands for 2, 2, 2, 1."""
    found = [re.fullmatch(r"(\d{1,5})(?:\(x(\d{1,5})\))?", part) for part in text.split(",")]
    return [int(part[1]) for part in found if part for _ in range(int(part[2] or 1))]


def _assigned(counts: Sequence[int], together: int) -> list[int]:
    """Assigns tasks to nodes in turn, `together` at a time, until each node has its count."""
    left, order = list(counts), []
    while any(left):
        for node, open_places in enumerate(left):
            taken = min(together, open_places)
            order += [node] * taken
            left[node] -= taken
    return order


def _check_own_node(
    environment: Mapping[str, str], nodes_of_tasks: Sequence[int], own: int
) -> None:
    """Checks the computed tasks of this node against Slurm's, so that nobody waits in vain."""
    mine = ",".join(str(task) for task, node in enumerate(nodes_of_tasks) if node == own)
    tasks = environment.get("SLURM_GTIDS")
    if mine != tasks:
        why = f"has tasks {tasks} of the step, not {mine}: start it with srun --distribution=block"
        raise ManagedError(f"Slurm: this node {why}")
