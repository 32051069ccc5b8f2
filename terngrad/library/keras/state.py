"""The state of a Keras model: what processes share, compare, or must keep different."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.keras.internals import (
    accumulated,
    layers_of,
    lookup_of,
    own_state,
    seed_generators,
    steps_of,
)

_NODES_APART = 0x9E3779B9  # odd: up to 2^32 nodes get different seeds


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Returns float variables that layers may change by themselves, such as those of batch norm.

    A constant that a trainable layer holds is among them, as a step might assign it.
    """
    # A layer's own ones: its public lists also hold frozen weights, and those of layers within.
    own = [v for n in layers_of(model) if n.trainable for v in own_state(n)]
    floats = [v for v in own if "float" in keras.backend.standardize_dtype(v.dtype)]
    return list({id(v): v for v in floats}.values())


def counters(model: keras.Model) -> list[keras.Variable]:
    """Returns other variables that layers may change by themselves, such as counts of calls."""
    own = [v for n in layers_of(model) if n.trainable for v in own_state(n)]
    others = {id(v): v for v in own if "float" not in keras.backend.standardize_dtype(v.dtype)}
    return list(others.values())


def seed_states(model: keras.Model) -> list[tf.Variable]:
    """Returns the states of random layers, such as dropout: each a seed and a count of draws."""
    generators = [g for n in layers_of(model) for g in seed_generators(n)]
    states = [plain(generator.state) for generator in generators]
    return list({id(state): state for state in states}.values())


def share_seeds(model: keras.Model, group: Group, nodes: int) -> None:
    """Gives random layers the chief's seeds, in which each node's number is mixed.

    With equal seeds all nodes would drop the same units, while the rows of one batch drop others.
    Node 0 keeps the chief's.
    """
    states = seed_states(model)
    group.broadcast(states)
    for state in states:
        state.assign(of_node(state, group.rank * nodes))


def assign_seeds(
    states: Sequence[tf.Variable], values: Sequence[tf.Tensor], old: int, new: int
) -> None:
    """Assigns the states of one node to another one, with the other's number mixed in."""
    for state, value in zip(states, values, strict=True):
        state.assign(of_node(of_node(value, old), new))


def of_node(state: tf.Tensor, node: int) -> tf.Tensor:
    """Returns node 0's state as a node's, and a node's as node 0's."""
    mixed = node * _NODES_APART % (1 << 32)
    return tf.bitwise.bitwise_xor(state, tf.constant([mixed, 0], state.dtype))


def average_accumulated(
    group: Group, optimizers: Sequence[keras.optimizers.Optimizer], *, is_restored: bool = False
) -> None:
    """Gives all workers the means of gradients that Keras has accumulated for the next update.

    A worker's own ones would be lost where all take the chief's state, or in a backup, which only
    the chief makes. Means add up with later gradients to the same update. Nothing changes if all
    have the same ones, if the chief's are `is_restored`, or if workers have made unequally many
    steps: then the chief's state counts.

    Args:
      group: the processes, which all call this.
      optimizers: the distributed ones; those within another one accumulate means.
      is_restored: whether the chief has read its state from a backup just now.
    """
    accumulating = [each for each in optimizers if each.gradient_accumulation_steps]
    if not accumulating:
        return
    held = [plain(variable) for each in accumulating for variable in accumulated(each)]
    steps = [steps_of(each) for each in accumulating]
    own = {"restored": is_restored, "steps": steps, "sums": _checksum(held)}
    rows = group.all_gather_object(own, what="accumulated gradients")
    belong = not rows[0]["restored"] and all(row["steps"] == steps for row in rows)
    if belong and len({row["sums"] for row in rows}) > 1:
        assign(held, group.all_reduce(values(held)))


def described(model: keras.Model) -> str:
    """Returns what workers compare of their models' weights; layers' names may differ."""
    kinds = [f"{keras.backend.standardize_dtype(v.dtype)}{tuple(v.shape)}" for v in model.weights]
    total = sum(int(np.prod(v.shape)) for v in model.weights)
    return f"{len(kinds)} with {total} values ({zlib.crc32(' '.join(kinds).encode()):08x})"


def learned(model: keras.Model) -> str:
    """Returns what workers compare of what preprocessing layers learn beside weights.

    That is the vocabulary of TextVectorization and the lookup layers, and Discretization's bins.
    """
    layers = layers_of(model)
    within = {id(lookup_of(layer)) for layer in layers}
    found: list[tuple[keras.Layer, list]] = []
    for layer in layers:
        if hasattr(layer, "get_vocabulary") and id(layer) not in within:
            found.append((layer, [str(word) for word in layer.get_vocabulary()]))
        elif isinstance(layer, keras.layers.Discretization):
            found.append((layer, [float(edge) for edge in layer.bin_boundaries or ()]))
    parts = [
        f"{type(layer).__name__} of {len(each)} ({zlib.crc32(repr(each).encode()):08x})"
        for layer, each in found
    ]
    return ", ".join(parts) or "nothing"


def refresh(model: keras.Model) -> None:
    """Refreshes the copies that some layers keep of their weights, after these were set."""
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def digest(model: keras.Model) -> int:
    """Returns a checksum of the model's weights."""
    return _checksum(model.weights)


def _checksum(variables: Sequence[Any]) -> int:
    found = 0
    for variable in variables:
        found = zlib.crc32(plain(variable).numpy().tobytes(), found)
    return found


def values(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    """Returns the values of variables."""
    return [plain(variable).read_value() for variable in variables]


def assign(variables: Sequence[keras.Variable], new: Sequence[tf.Tensor]) -> None:
    """Assigns values to variables."""
    for variable, value in zip(variables, new, strict=True):
        plain(variable).assign(value)
