"""Between a training's variables by name and the states that the ps hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.space import Share, make_space
from terngrad.layout import Layout

State = Mapping[str, tf.Variable]  # "GROUP/NAME", as in checkpoints


def pack(
    state: State,
    statistics: Sequence[tf.Variable],
    layout: Layout,
    groups: Sequence[str],
    shares: Sequence[Share],
) -> list[bytes]:
    """The state of each ps.

    Args:
      state: variables by group and name.
      statistics: what is not trained.
      layout: of the trained variables.
      groups: in the order of a ps' state, see `state_groups`.
      shares: of the ps.
    """
    space, rows = make_space(layout), []
    for group in groups:
        row = np.zeros(space.size, np.float32)
        for place in space.places:
            value = state[f"{group}/{layout.names[place.variable]}"].numpy()
            row[place.start : place.start + place.size] = value.reshape(-1)
        rows.append(row)
    flat = [np.float32(v.numpy()).reshape(-1) for v in statistics]
    found = []
    for share in shares:
        parts = [row[share.first : share.first + share.size] for row in rows]
        parts += flat if share.statistics else []
        found.append(b"".join(part.tobytes() for part in parts))
    return found


def unpack(
    contents: Sequence[bytes | bytearray],
    state: State,
    statistics: Sequence[tf.Variable],
    layout: Layout,
    groups: Sequence[str],
    shares: Sequence[Share],
) -> None:
    """Assigns what all ps hold; for the arguments see `pack`."""
    values = [np.frombuffer(content, "<f4") for content in contents]
    space = make_space(layout)
    for i, group in enumerate(groups):
        pairs = zip(values, shares, strict=True)
        row = np.concatenate([v[i * s.size : (i + 1) * s.size] for v, s in pairs])
        for place in space.places:
            variable = state[f"{group}/{layout.names[place.variable]}"]
            part = row[place.start : place.start + place.size]
            variable.assign(part.reshape(variable.shape))
    rest = values[0][len(groups) * shares[0].size :]
    for variable in statistics:
        size = variable.shape.num_elements()
        value, rest = rest[:size], rest[size:]
        variable.assign(tf.cast(tf.reshape(value, variable.shape), variable.dtype))
