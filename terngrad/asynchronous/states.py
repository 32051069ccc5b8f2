"""Converts a training's variables into the states of the ps, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.space import Shard, make_space
from terngrad.layout import Layout


@dataclasses.dataclass(frozen=True)
class States:
    """Packs variables into the state of each ps, and unpacks them.

    Attributes:
      variables: variables by "GROUP/NAME", as in checkpoints.
      statistics: the moving statistics.
      layout: layout of the trained variables.
      groups: groups in the order of a ps' state, see `state_groups`.
      shards: shard of each ps.
    """

    variables: Mapping[str, tf.Variable]
    statistics: Sequence[tf.Variable]
    layout: Layout
    groups: Sequence[str]
    shards: Sequence[Shard]

    def pack(self) -> list[bytes]:
        """Returns the state of each ps."""
        space, rows = make_space(self.layout), []
        for group in self.groups:
            row = np.zeros(space.size, np.float32)
            for place in space.places:
                value = self._variable(group, place.variable).numpy()
                row[place.start : place.start + place.size] = value.reshape(-1)
            rows.append(row)
        flat = [np.float32(v.numpy()).reshape(-1) for v in self.statistics]
        found = []
        for shard in self.shards:
            parts = [row[shard.first : shard.first + shard.size] for row in rows]
            parts += flat if shard.statistics else []
            found.append(b"".join(part.tobytes() for part in parts))
        return found

    def unpack(self, contents: Sequence[bytes | bytearray]) -> None:
        """Assigns the state of each ps to the variables."""
        values = [np.frombuffer(content, "<f4") for content in contents]
        space = make_space(self.layout)
        for i, group in enumerate(self.groups):
            pairs = zip(values, self.shards, strict=True)
            row = np.concatenate([v[i * s.size : (i + 1) * s.size] for v, s in pairs])
            for place in space.places:
                variable = self._variable(group, place.variable)
                part = row[place.start : place.start + place.size]
                variable.assign(part.reshape(variable.shape))
        rest = values[0][len(self.groups) * self.shards[0].size :]
        for variable in self.statistics:
            size = variable.shape.num_elements()
            value, rest = rest[:size], rest[size:]
            variable.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))

    def _variable(self, group: str, index: int) -> tf.Variable:
        return self.variables[f"{group}/{self.layout.names[index]}"]
