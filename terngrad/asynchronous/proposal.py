"""What a worker's texts say, before anything is allocated for it: a plan, or whom it joins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from terngrad.asynchronous.plan import Plan, PlanError
from terngrad.asynchronous.space import Shard, make_shards
from terngrad.asynchronous.updates import state_bytes
from terngrad.training.schedules import Schedule

# What reading a text may raise that somebody else wrote.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class CallError(ValueError):
    """Says why a worker cannot have what it asks for."""


class Proposal(NamedTuple):
    """A run that could begin.

    Attributes:
      plan: of the run.
      shard: what this ps would hold.
      state_bytes: size of the state with which it would begin.
    """

    plan: Plan
    shard: Shard
    state_bytes: int


def read_proposal(
    text: bytes, ps: int, ps_count: int, make_schedule: Callable[[str], Schedule]
) -> Proposal:
    """Reads a plan as ps `ps` of `ps_count`.

    Raises:
      PlanError: the plan cannot be followed, or `make_schedule` cannot read its schedule.
    """
    plan = Plan.from_json(text)
    layout, nodes = plan.layout(), plan.nodes
    shard = make_shards(layout, ps_count, nodes, plan.statistics, plan.max_code)[ps]
    try:
        make_schedule(plan.schedule)
    except UNREADABLE as error:
        raise PlanError(f"the plan's schedule cannot be read: {error}") from None
    return Proposal(plan, shard, state_bytes(plan, shard))


def read_entry(content: bytes | bytearray) -> tuple[str, dict[str, str]]:
    """The run that a worker was in, and its facts; CallError unless the text is such JSON."""
    try:
        said = json.loads(bytes(content))
        return str(said["run"]), {str(k): str(v) for k, v in said["facts"].items()}
    except UNREADABLE:
        raise CallError(
            'the content of ENTER must be JSON of the form {"run": "", "facts": {}}'
        ) from None
