"""What a ps must know of a training to hold its parameters: the chief tells it as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from terngrad.layout import Layout, Policy, make_layout
from terngrad.limits import MAX_NODES, MAX_SUM

MAX_ELEMENTS = 1 << 30  # of a net, on all ps
_LONGEST_RUN = 64  # characters
_INT, _FLOAT, _TEXT = (int,), (int, float), (str,)
_KINDS = {
    "run": _TEXT,
    "policy": (Policy,),
    "bucket_elements": _INT,
    "statistics": _INT,
    "nodes": _INT,
    "optimizer": _TEXT,
    "momentum": _FLOAT,
    "averages_decay": _FLOAT,
    "max_steps": _INT,
    "max_staleness": _INT,
    "pull_bits": _INT,
    "schedule": _TEXT,
    "facts": (dict,),
    "max_code": _INT,
}
_POLICY_KINDS = {
    "grad_bits": _INT,
    "clip_factor": _FLOAT,
    "size_to_binarize": _INT,
    "float_layers": (tuple,),
    "scaler_sharing": (bool,),
    "use_encoding": (bool,),
    "codec": _TEXT,
}
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
        """Raises PlanError if this is none that a ps could follow."""
        self._check_types()
        is_name = 0 < len(self.run) <= _LONGEST_RUN and self.run.isascii()
        _expect(is_name and self.run.isprintable(), f"run is {self.run[:_LONGEST_RUN]!r}")
        _expect(len(self.names) == len(self.shapes), "there are not as many names as shapes")
        _expect(all(d > 0 for shape in self.shapes for d in shape), "a shape is empty")
        _expect(self.statistics >= 0, f"{self.statistics} statistics")
        elements = self.statistics + sum(map(_elements, self.shapes))
        _expect(0 < elements <= MAX_ELEMENTS, f"{elements} values; allowed are {MAX_ELEMENTS}")
        _expect(self.bucket_elements > 0, f"buckets of {self.bucket_elements} elements")
        _expect(1 <= self.nodes <= MAX_NODES, f"{self.nodes} nodes; allowed are 1 to {MAX_NODES}")
        most = MAX_SUM // self.nodes
        _expect(1 <= self.max_code <= most, f"max_code is {self.max_code}; allowed are 1 to {most}")
        _expect(self.optimizer in _OPTIMIZERS, f"optimizer is {self.optimizer!r}")
        _expect(0 <= self.momentum <= 1, f"momentum is {self.momentum}")
        _expect(0 <= self.averages_decay <= 1, f"averages_decay is {self.averages_decay}")
        _expect(0 < self.max_steps < 1 << 63, f"max_steps is {self.max_steps}")
        _expect(self.max_staleness >= -1, f"max_staleness is {self.max_staleness}")
        _expect(self.pull_bits in (16, 32), f"pull_bits is {self.pull_bits}")

    def _check_types(self) -> None:
        """Since who calls a ps may write anything as JSON."""
        for name, kinds in _KINDS.items():
            _expect_kind(name, getattr(self, name), *kinds)
        for name in ("names", "shapes"):
            _expect_kind(name, getattr(self, name), tuple)
        for name in self.names:
            _expect_kind("a name", name, str)
        for shape in self.shapes:
            _expect_kind("a shape", shape, tuple)
            for size in shape:
                _expect_kind("a size", size, int)
        for field in dataclasses.fields(Policy):
            kinds = _POLICY_KINDS[field.name]
            _expect_kind(f"policy: {field.name}", getattr(self.policy, field.name), *kinds)
        for pair in self.facts.items():
            for text in pair:
                _expect_kind("a fact", text, str)

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
            policy["float_layers"] = _tuple("float_layers", policy["float_layers"])
            for layer in policy["float_layers"]:
                _expect_kind("a float layer", layer, str)
            values["policy"] = Policy(**policy)
            values["names"] = _tuple("names", values["names"])
            shapes = _tuple("shapes", values["shapes"])
            values["shapes"] = tuple(_tuple("a shape", shape) for shape in shapes)
            _expect_kind("facts", values["facts"], dict)
            return cls(**values)
        except PlanError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PlanError(f"a plan that is none: {error}") from None


def _tuple(name: str, value: Any) -> tuple:
    _expect_kind(name, value, list)
    return tuple(value)


def _elements(shape: tuple[int, ...]) -> int:
    """Of a variable; no more than just too many, since a product may have any number of digits."""
    found = 1
    for size in shape:
        found = min(found * size, MAX_ELEMENTS + 1)
    return found


def _expect_kind(name: str, value: Any, *kinds: type) -> None:
    # Exactly these: True counts as an int otherwise.
    _expect(type(value) in kinds, f"{name} is of type {type(value).__name__}")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanError(otherwise)
