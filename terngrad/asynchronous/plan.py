"""The plan of a run: what a ps must know to hold its parameters. The chief sends it as JSON.

The plan says what the state of each ps consists of. A ps reads it before it allocates memory.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from terngrad.asynchronous import fields
from terngrad.asynchronous.row import Shard, make_shards
from terngrad.layout import (
    FLOAT,
    FORMER_FIELDS,
    MAX_NODES,
    MAX_SUM,
    PULL_CODEC_NAMES,
    Layout,
    Policy,
    make_layout,
)
from terngrad.training.schedules import Schedule
from terngrad.training.slots import SLOTS

MAX_ELEMENTS = 1 << 30  # of a net, on all ps
FORMER_CONFIGURATION = "facts"  # key of the configuration in files of earlier versions
_LONGEST_RUN = 64  # characters
_MAX_INT64 = (1 << 63) - 1


class PlanError(ValueError):
    """No ps can follow this plan; the text says why."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A training, as its chief describes it.

    Attributes:
      run: name of the run; each run has another.
      names: names of the trained variables.
      shapes: shapes of the trained variables.
      policy: how gradients are sent.
      bucket_elements: see `make_layout`.
      statistics: number of floats in the moving statistics, which ps 0 holds.
      nodes: nodes of a worker, which sends the sums of their codes.
      optimizer: name of the optimizer, as in its flag.
      momentum: momentum of the optimizer.
      averages_decay: decay of the moving averages; 0 = no averages.
      max_steps: updates after which the run is finished.
      max_staleness: see `StalenessBound`; -1 = no bound.
      pull_bits: bits of a parameter that is sent to a worker, 32 or 16.
      schedule: text from which the ps' program makes the learning rate.
      configuration: settings that must be equal on all workers, by name.
      max_code: largest magnitude of a node's code. A ps needs no more of the codec, whose code only
        the workers may have.
      pull_codec: how parameters travel to a worker: one of `layout.PULL_CODEC_NAMES`.
    """

    run: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    policy: Policy
    bucket_elements: int
    statistics: int
    nodes: int
    optimizer: str
    momentum: float
    averages_decay: float
    max_steps: int
    max_staleness: int
    pull_bits: int
    schedule: str
    configuration: Mapping[str, str]
    max_code: int = 1
    pull_codec: str = FLOAT

    def __post_init__(self) -> None:
        """Raises PlanError if no ps can follow this plan."""
        try:
            fields.check(self)
        except fields.FieldError as error:
            raise PlanError(str(error)) from None
        is_name = 0 < len(self.run) <= _LONGEST_RUN and self.run.isascii()
        _expect(
            is_name and self.run.isprintable(),
            f"run is {self.run[:_LONGEST_RUN]!r}; allowed are 1 to {_LONGEST_RUN} ASCII letters",
        )
        _expect(
            len(self.names) == len(self.shapes),
            f"{len(self.names)} names and {len(self.shapes)} shapes; the numbers must be equal",
        )
        _expect(
            all(size > 0 for shape in self.shapes for size in shape),
            "a shape has a dimension below 1; allowed are 1 and more",
        )
        elements = self.statistics + sum(map(_elements, self.shapes))
        limit = MAX_ELEMENTS
        size = f"over {limit}" if elements > limit else elements
        _expect(
            0 < elements <= limit, f"parameters and statistics: {size}; allowed are 1 to {limit}"
        )
        for name, value, low, high in (
            ("statistics", self.statistics, 0, MAX_ELEMENTS),
            ("bucket_elements", self.bucket_elements, 1, _MAX_INT64),
            ("nodes", self.nodes, 1, MAX_NODES),
            ("max_code", self.max_code, 1, MAX_SUM // min(max(self.nodes, 1), MAX_NODES)),
            ("momentum", self.momentum, 0, 1),
            ("averages_decay", self.averages_decay, 0, 1),
            ("max_steps", self.max_steps, 1, _MAX_INT64),
            ("max_staleness", self.max_staleness, -1, _MAX_INT64),
        ):
            _expect(low <= value <= high, f"{name}: {value}; allowed are {low} to {high}")
        allowed = ", ".join(SLOTS)
        _expect(
            self.optimizer in SLOTS, f"optimizer is {self.optimizer[:64]!r}; allowed are {allowed}"
        )
        _expect(self.pull_bits in (16, 32), f"pull_bits is {self.pull_bits}; allowed are 16 and 32")
        allowed = ", ".join(PULL_CODEC_NAMES)
        _expect(
            self.pull_codec in PULL_CODEC_NAMES,
            f"pull_codec is {self.pull_codec[:64]!r}; allowed are {allowed}",
        )
        _expect(
            self.pull_bits == 32 or self.pull_codec == FLOAT,
            f"pull_bits is {self.pull_bits}; allowed is 32 with pull_codec={self.pull_codec}",
        )

    def layout(self) -> Layout:
        """Returns the layout of the variables; PlanError if there is none."""
        try:
            return make_layout(self.names, self.shapes, self.policy, self.bucket_elements)
        except ValueError as error:
            raise PlanError(str(error)) from None

    def to_json(self) -> str:
        """Returns the plan as JSON, for a message or a file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Reads the text of `to_json`, also of an earlier version; PlanError for any other text."""
        try:
            values = json.loads(text)
            if isinstance(values, dict) and isinstance(policy := values.get("policy"), dict):
                values["policy"] = {k: v for k, v in policy.items() if k not in FORMER_FIELDS}
            if isinstance(values, dict) and FORMER_CONFIGURATION in values:
                values["configuration"] = values.pop(FORMER_CONFIGURATION)
            return fields.read(cls, values)
        except PlanError:
            raise
        except (ValueError, RecursionError) as error:  # a wrong field, policy or JSON
            raise PlanError(f"the plan cannot be read: {error}") from None


def state_groups(plan: Plan) -> list[str]:
    """Returns the groups of values in the state of a ps, in their order."""
    averages = ["averages"] if plan.averages_decay else []
    return ["variables", *averages, *(f"slots/{slot}" for slot in SLOTS[plan.optimizer])]


def state_bytes(plan: Plan, shard: Shard) -> int:
    """Returns the bytes of a shard's state: its groups as float32, then the statistics."""
    return 4 * (len(state_groups(plan)) * shard.size + shard.statistics)


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
    except fields.UNREADABLE as error:
        raise PlanError(f"the plan's schedule cannot be read: {error}") from None
    return Proposal(plan, shard, state_bytes(plan, shard))


def _elements(shape: tuple[int, ...]) -> int:
    """Returns a variable's size, at most MAX_ELEMENTS + 1: products may have many digits."""
    found = 1
    for size in shape:
        found = min(found * size, MAX_ELEMENTS + 1)
    return found


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanError(otherwise)
