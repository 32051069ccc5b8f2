"""Reads the texts that workers send, before memory is allocated for their content."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from terngrad.asynchronous.plan import Plan, PlanError
from terngrad.asynchronous.space import Shard, make_shards
from terngrad.asynchronous.updates import state_bytes
from terngrad.training.schedules import Schedule

# Errors of reading a text that another program wrote.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class CallError(ValueError):
    """A worker's call cannot be answered; the text says why."""


class Proposal(NamedTuple):
    """A run that may begin.

    Attributes:
      plan: plan of the run.
      shard: shard of this ps.
      state_bytes: bytes of the shard's state.
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
    """Returns a worker's run and its configuration; raises CallError if the JSON is malformed."""
    try:
        said = json.loads(bytes(content))
        return str(said["run"]), {str(k): str(v) for k, v in said["facts"].items()}
    except UNREADABLE:
        raise CallError(
            'the content of ENTER must be JSON of the form {"run": "", "facts": {}}'
        ) from None
