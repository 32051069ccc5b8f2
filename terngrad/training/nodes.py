"""The work of a process' nodes in a step: the worker's part of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec, NodeMemory, encode_each
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.training.bystander import Bystander
from terngrad.training.classifier import Classifier, Losses


class NodeGradients(NamedTuple):
    """A node's results for its part of a batch; see `Classifier.gradients`."""

    gradients: list[tf.Tensor]
    losses: Losses
    state: list[tf.Tensor]


class NodeCodes(NamedTuple):
    """The results of one codec, with one list element for each node.

    Attributes:
      codes: the node's gradients as they are sent.
      scales: float32 [v], the scales of its codes.
      kept: the node's memory after a step that it took part in.
      unsent: its memory after a step that the others made without it.
    """

    codes: list[list[tf.Tensor]]
    scales: list[tf.Tensor]
    kept: list[NodeMemory]
    unsent: list[NodeMemory]


def seed_of_draws(seed: int) -> tf.Tensor:
    """Returns the seed of all draws: uint64, the low 64 bits of `seed`."""
    return tf.constant(seed % (1 << 64), tf.uint64)


def draw_keys(seed: tf.Tensor, step: tf.Tensor, first_node: int, nodes: int) -> list[DrawKey]:
    """Returns the keys of the draws of consecutive nodes at a step."""
    return [DrawKey(seed, step, tf.constant(first_node + i)) for i in range(nodes)]


def spread(devices: Sequence[str], nodes: int) -> list[str]:
    """Returns the device of each node; consecutive nodes share a device."""
    return [devices[i * len(devices) // nodes] for i in range(nodes)]


def compute_nodes(
    classifier: Classifier | Bystander,
    images: tf.Tensor,
    labels: tf.Tensor,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
) -> Iterator[NodeGradients]:
    """Yields each node's results for its part of the process' batch.

    Args:
      classifier: net, loss, parameters.
      images: float32 [B, H, W, C], split over the nodes.
      labels: int32 [B].
      keys: key of each node's draws.
      devices: device of each node.
    """
    parts = zip(tf.split(images, len(keys)), tf.split(labels, len(keys)), strict=True)
    for (x, y), key, device in zip(parts, keys, devices, strict=True):
        with tf.device(device):
            found = NodeGradients(*classifier.gradients(x, y, dropout_seed(key)))
        yield found  # outside the block: the caller's operations do not belong to this device


def encode_nodes(
    gradients: Sequence[Sequence[tf.Tensor]],
    codec: Codec,
    exchange: Exchange,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    memories: Sequence[NodeMemory],
) -> NodeCodes:
    """Adds the memory, clips, agrees on scales, encodes, and updates the memory.

    Args:
      gradients: gradients of all variables, by node; the codec uses those of its own.
      codec: codec to measure and encode with.
      exchange: connects the nodes that agree on scales.
      keys: key of each local node's draws.
      devices: device of each node, which measures and encodes: only codes leave it.
      memories: memory of each node before the step.
    """
    inputs = _measure_nodes(gradients, codec, exchange, devices, memories)
    codes = encode_each(codec, *inputs, keys, devices)
    return _with_memories(codec, inputs, codes, devices, memories)


def exchange_nodes(
    gradients: Sequence[Sequence[tf.Tensor]],
    codec: Codec,
    exchange: Exchange,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    memories: Sequence[NodeMemory],
) -> tuple[NodeCodes, list[tf.Tensor]]:
    """Returns `encode_nodes`, and the mean gradients of the codec's variables over all nodes."""
    inputs = _measure_nodes(gradients, codec, exchange, devices, memories)
    codes, means = codec.encode_and_deliver(exchange, *inputs, keys, devices)
    return _with_memories(codec, inputs, codes, devices, memories), means


class _Inputs(NamedTuple):
    """What `Codec.encode` takes, with one list element for each node."""

    corrected: list[list[tf.Tensor]]
    bounds: list[tf.Tensor]
    scales: list[tf.Tensor]


def _measure_nodes(gradients, codec: Codec, exchange: Exchange, devices, memories) -> _Inputs:
    corrected, measured = [], []
    for node, memory, device in zip(gradients, memories, devices, strict=True):
        with tf.device(device):
            corrected.append(codec.correct([node[i] for i in codec.variables], memory))
            measured.append(codec.measure(corrected[-1]))
    return _Inputs(corrected, [m.bounds for m in measured], codec.agree(exchange, measured))


def _with_memories(codec: Codec, inputs: _Inputs, codes, devices, memories) -> NodeCodes:
    kept = []
    for corrected, encoded, scales, device in zip(
        inputs.corrected, codes, inputs.scales, devices, strict=True
    ):
        with tf.device(device):
            kept.append(codec.update(corrected, encoded, scales))
    unsent = [c if memory else [] for c, memory in zip(inputs.corrected, memories, strict=True)]
    return NodeCodes(codes, inputs.scales, kept, unsent)


def dropout_seed(key: DrawKey) -> tf.Tensor:
    """Returns the seed of the draws that a node's layers make at a step: int32 [2]."""
    base = tf.bitcast(tf.reshape(key.seed, [1]), tf.int32)[0]
    mixed = tf.random.experimental.stateless_fold_in(base, tf.cast(key.step, tf.int32))
    return tf.random.experimental.stateless_fold_in(mixed, key.node)
