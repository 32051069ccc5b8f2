"""What a ps must know of a training to hold its parameters: the chief tells it as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from terngrad.layout import Layout, Policy, make_layout
from terngrad.limits import MAX_NODES

MAX_ELEMENTS = 1 << 30  # of a net, on all ps
_LONGEST_RUN = 64  # characters
_OPTIMIZERS = ("momentum", "adam", "gd", "rmsprop")


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

    def __post_init__(self) -> None:
        """Raises PlanError if this is none that a ps could follow."""
        _expect(0 < len(self.run) <= _LONGEST_RUN, f"run is {self.run[:_LONGEST_RUN]!r}")
        _expect(len(self.names) == len(self.shapes), "there are not as many names as shapes")
        _expect(all(d > 0 for shape in self.shapes for d in shape), "a shape is empty")
        elements = self.statistics + sum(math.prod(shape) for shape in self.shapes)
        _expect(0 < elements <= MAX_ELEMENTS, f"{elements} values; allowed are {MAX_ELEMENTS}")
        _expect(self.statistics >= 0, f"{self.statistics} statistics")
        _expect(self.bucket_elements > 0, f"buckets of {self.bucket_elements} elements")
        _expect(1 <= self.nodes <= MAX_NODES, f"{self.nodes} nodes; allowed are 1 to {MAX_NODES}")
        _expect(self.optimizer in _OPTIMIZERS, f"optimizer is {self.optimizer!r}")
        _expect(0 <= self.momentum <= 1, f"momentum is {self.momentum}")
        _expect(0 <= self.averages_decay <= 1, f"averages_decay is {self.averages_decay}")
        _expect(0 < self.max_steps < 1 << 63, f"max_steps is {self.max_steps}")
        _expect(self.max_staleness >= -1, f"max_staleness is {self.max_staleness}")
        _expect(self.pull_bits in (16, 32), f"pull_bits is {self.pull_bits}")

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
        """Reads what `to_json` wrote; PlanError if it did not write this."""
        try:
            values: dict[str, Any] = json.loads(text)
            policy = dict(values["policy"])
            policy["float_layers"] = tuple(map(str, policy["float_layers"]))
            values["policy"] = Policy(**policy)
            values["names"] = tuple(map(str, values["names"]))
            values["shapes"] = tuple(tuple(map(int, shape)) for shape in values["shapes"])
            values["facts"] = {str(k): str(v) for k, v in values["facts"].items()}
            return cls(**values)
        except PlanError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PlanError(f"a plan that is none: {error}") from None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanError(otherwise)
