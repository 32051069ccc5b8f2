"""What a ps must know of a training to hold its parameters: the chief tells it as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from terngrad.asynchronous import fields
from terngrad.layout import Layout, Policy, make_layout
from terngrad.limits import MAX_NODES, MAX_SUM
from terngrad.training.slots import SLOTS

MAX_ELEMENTS = 1 << 30  # of a net, on all ps
_LONGEST_RUN = 64  # characters
_MAX_INT64 = (1 << 63) - 1


class PlanError(ValueError):
    """Says what is wrong with a plan."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A training, as its chief describes it.

    Attributes:
      run: identifies the run; another one begins from other parameters.
      names: of the trained variables.
      shapes: of them.
      policy: how their gradients travel.
      bucket_elements: see `make_layout`.
      statistics: number of floats that are not trained, moving statistics; ps 0 holds them.
      nodes: of a worker, whose codes come as sums over so many.
      optimizer: by the name of its flag.
      momentum: of it.
      averages_decay: of the moving averages; 0 = none.
      max_steps: updates after which the run is finished.
      max_staleness: see `Bound`; -1 = no bound.
      pull_bits: 32 or 16, of a parameter on its way to a worker.
      schedule: text from which the ps' program makes the learning rate.
      facts: what all workers must have in common, by name.
      max_code: largest magnitude of a node's code. A ps needs to know no more of the codec, whose
        name may stand for code that only the workers have.
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
    facts: Mapping[str, str]
    max_code: int = 1

    def __post_init__(self) -> None:
        """Raises PlanError where no ps could follow this plan."""
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
            f"{len(self.names)} names and {len(self.shapes)} shapes; allowed are as many of both",
        )
        _expect(
            all(size > 0 for shape in self.shapes for size in shape),
            "a shape has a size below 1; allowed are 1 and more",
        )
        elements = self.statistics + sum(map(_elements, self.shapes))
        most = MAX_ELEMENTS
        told = f"over {most}" if elements > most else elements
        _expect(0 < elements <= most, f"parameters and statistics: {told}; allowed are 1 to {most}")
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

    def layout(self) -> Layout:
        """The variables as they travel; PlanError if they cannot be laid out."""
        try:
            return make_layout(self.names, self.shapes, self.policy, self.bucket_elements)
        except ValueError as error:
            raise PlanError(str(error)) from None

    def to_json(self) -> str:
        """For a message, or a file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Reads what `to_json` wrote; PlanError says what is wrong with any other text."""
        try:
            return fields.read(cls, json.loads(text))
        except PlanError:
            raise
        except (ValueError, RecursionError) as error:  # of a field, of its policy, or no JSON
            raise PlanError(f"the plan cannot be read: {error}") from None


def _elements(shape: tuple[int, ...]) -> int:
    """Of a variable; no more than just too many, since a product may have any number of digits."""
    found = 1
    for size in shape:
        found = min(found * size, MAX_ELEMENTS + 1)
    return found


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanError(otherwise)
