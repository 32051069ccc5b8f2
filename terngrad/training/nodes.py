"""The work of a process' nodes in a step: the worker's part of the paper's Algorithm 1."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec, NodeMemory
from terngrad.codecs.sum_codec import CodedSums
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.ops.gradient_kernels import EncodeInputs, Sums
from terngrad.training.classifier import Classifier, IdleClassifier, Losses


def for_each_node(
    nodes: int,
    compute: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    specs: Sequence[tf.TensorSpec],
    groups: Sequence[Sequence[int]],
) -> list[list[tf.Tensor]]:
    """Returns the results of `compute` for each node; the graph is as large as that of one node.

    All nodes compute at once. The results of a group leave the loop when all nodes have these,
    while others are still being computed: a result of `tf.function` would have to wait for all.

    Args:
      nodes: number of nodes.
      compute: returns a node's results, given its index, an int32 scalar. It is traced once.
      specs: types and shapes of a node's results.
      groups: indices of results of one type; together they hold every result once.
    """

    def body(node: tf.Tensor, *lists: tf.Tensor) -> tuple[tf.Tensor, ...]:
        results = compute(node)
        pairs = zip(lists, groups, strict=True)
        return node + 1, *(add(items, [results[i] for i in group]) for items, group in pairs)

    _, *lists = tf.while_loop(
        lambda node, *_: node < nodes,
        body,
        (tf.constant(0), *(make_list(element_type=specs[group[0]].dtype) for group in groups)),
        parallel_iterations=nodes + 1,  # the last one finds that no node is left
    )
    found: list[list[tf.Tensor]] = [[None] * len(specs) for _ in range(nodes)]
    constant = functools.cache(tf.constant)  # equal ones are one operation of the graph
    for group, items in zip(groups, lists, strict=True):
        for place, (node, i) in enumerate(itertools.product(range(nodes), group)):
            found[node][i] = tf.raw_ops.TensorListGetItem(
                input_handle=items,
                index=constant(place),
                element_shape=constant(tuple(specs[i].shape), tf.int32),
                element_dtype=specs[i].dtype,
            )
    return found


def make_list(values: Sequence[tf.Tensor] = (), element_type: tf.DType = tf.float32) -> tf.Tensor:
    """Returns a list of `values`, a scalar of type tf.variant."""
    items = tf.raw_ops.EmptyTensorList(
        element_shape=tf.constant(-1), max_num_elements=tf.constant(-1), element_dtype=element_type
    )
    return add(items, values)


def add(items: tf.Tensor, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the list with `values` at its end."""
    for value in values:
        items = tf.raw_ops.TensorListPushBack(input_handle=items, tensor=value)
    return items


def read_all(items: tf.Tensor) -> list[tf.Tensor]:
    """Returns the values of a list of float32, outside graphs."""
    get = tf.raw_ops.TensorListGetItem
    return [
        get(input_handle=items, index=i, element_shape=-1, element_dtype=tf.float32)
        for i in range(int(tf.raw_ops.TensorListLength(input_handle=items)))
    ]


class NodeGradients(NamedTuple):
    """A node's results for its part of a batch; see `Classifier.gradients`.

    Attributes:
      gradients: in the order of the classifier's variables.
      losses: of its part.
      state: float32, all values of the classifier's state in one row; see `values_of_row`.
    """

    gradients: list[tf.Tensor]
    losses: Losses
    state: tf.Tensor


class NodeCodes(NamedTuple):
    """The results of one codec, with one list element for each node.

    Attributes:
      codes: the node's gradients as they are sent.
      scales: float32 [p], the scales of its codes.
      kept: the node's memory after a step that it took part in.
      unsent: its memory after a step that the others made without it.
    """

    codes: list[list[tf.Tensor]]
    scales: list[tf.Tensor]
    kept: list[NodeMemory]
    unsent: list[NodeMemory]


def draw_keys(seed: int, step: tf.Tensor, first_node: int, nodes: int) -> list[DrawKey]:
    """Returns the keys of the draws of consecutive nodes at a step; `seed` counts by 64 bits."""
    low = tf.constant(seed % (1 << 64), tf.uint64)
    return [DrawKey(low, step, tf.constant(first_node + i)) for i in range(nodes)]


def spread(devices: Sequence[str], nodes: int) -> list[str]:
    """Returns the device of each node; consecutive nodes share a device."""
    return [devices[i * len(devices) // nodes] for i in range(nodes)]


def compute_nodes(
    classifier: Classifier | IdleClassifier,
    images: tf.Tensor,
    labels: tf.Tensor,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    groups: Sequence[Sequence[int]] | None = None,
) -> list[NodeGradients]:
    """Returns each node's results for its part of the process' batch.

    Nodes of the same device share one graph, so that building and optimizing it takes no longer for
    many nodes than for one.

    Args:
      classifier: net, loss, parameters.
      images: float32 [B, H, W, C], split over the nodes.
      labels: int32 [B].
      keys: key of each node's draws.
      devices: device of each node; equal devices are neighbours.
      groups: indices of variables whose gradients are used together; a group's are there as soon
        as all nodes of the device have computed them. None = all together.
    """
    nodes = len(keys)
    images = tf.reshape(images, [nodes, -1, *images.shape[1:]])
    labels = tf.reshape(labels, [nodes, -1])
    seeds = tf.stack([dropout_seed(key) for key in keys])
    found: list[NodeGradients] = []
    for device, same in itertools.groupby(devices):
        own = slice(len(found), len(found) + len(list(same)))
        batch = images[own], labels[own], seeds[own]  # outside the block: devices get their parts
        with tf.device(device):
            found += _compute_on_one_device(classifier, *batch, own.stop - own.start, groups)
    return found


def _compute_on_one_device(
    classifier: Classifier | IdleClassifier, images, labels, seeds, nodes: int, groups
) -> list[NodeGradients]:
    def compute(node: tf.Tensor | int) -> list[tf.Tensor]:
        gradients, losses, state = classifier.gradients(images[node], labels[node], seeds[node])
        return [*gradients, *losses, row_of(state)]

    count, variables, state = len(classifier.variables), classifier.variables, classifier.state
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    specs += [tf.TensorSpec([], tf.float32)] * len(Losses._fields)
    specs.append(tf.TensorSpec([sum(v.shape.num_elements() for v in state.values())], tf.float32))
    groups = [*(groups or [range(count)]), range(count, len(specs))]
    found = [compute(0)] if nodes == 1 else for_each_node(nodes, compute, specs, groups)
    return [NodeGradients(each[:count], Losses(*each[count:-1]), each[-1]) for each in found]


def row_of(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Returns all values of tensors in one row, float32 [n]."""
    flat = (v if v.shape.rank == 1 else tf.reshape(v, [-1]) for v in values)
    return tf.concat([tf.zeros([0]), *(tf.cast(v, tf.float32) for v in flat)], 0)


def values_of_row(row: tf.Tensor, tensors: Iterable[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """Returns the values of a row of `row_of`, in the shapes and types of these tensors."""
    tensors = list(tensors)
    parts = tf.split(row, [v.shape.num_elements() for v in tensors]) if tensors else []
    return [
        tf.cast(part if v.shape.rank == 1 else tf.reshape(part, v.shape), v.dtype)
        for part, v in zip(parts, tensors, strict=True)
    ]


def exchange_nodes(
    gradients: Sequence[Sequence[tf.Tensor]],
    codec: Codec,
    exchange: Exchange,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    memories: Sequence[NodeMemory],
    *,
    as_sums: bool = False,
    coded_sums: CodedSums | None = None,
) -> tuple[NodeCodes, list[tf.Tensor] | Sums]:
    """Adds the memory, clips, agrees on scales, encodes, exchanges, and updates the memory.

    Args:
      gradients: gradients of all variables, by node; the codec uses those of its own.
      codec: codec to measure and encode with.
      exchange: connects the nodes.
      keys: key of each local node's draws.
      devices: device of each node, which measures and encodes: only codes leave it.
      memories: memory of each node before the step.
      as_sums: whether means need not be decoded, if they are decoded sums of codes.
      coded_sums: codes sums again on their way back; None = they stay exact.

    Returns:
      What the nodes sent and kept, and the mean gradients of the codec's variables over all nodes.
    """
    nodes = _measure_nodes(gradients, codec, exchange, keys, devices, memories)
    codes, means = codec.deliver(coded_sums or exchange, nodes, devices, as_sums)
    return _with_memories(codec, nodes, codes, devices, memories), means


def _measure_nodes(
    gradients, codec: Codec, exchange: Exchange, keys, devices, memories
) -> list[EncodeInputs]:
    corrected, measured = [], []
    for node, memory, device in zip(gradients, memories, devices, strict=True):
        with tf.device(device):
            own = [node[i] for i in codec.variables]
            values, found = codec.correct_and_measure(own, memory)
        corrected.append(values)
        measured.append(found)
    agreed = codec.agree(exchange, measured)
    bounds = [m.bounds for m in measured]
    keys = [dataclasses.replace(key, antithetic=codec.antithetic) for key in keys]
    return [EncodeInputs(*node) for node in zip(corrected, bounds, agreed, keys, strict=True)]


def _with_memories(
    codec: Codec, nodes: Sequence[EncodeInputs], codes, devices, memories
) -> NodeCodes:
    kept = []
    for node, encoded, device, memory in zip(nodes, codes, devices, memories, strict=True):
        with tf.device(device):
            kept.append(codec.update(node.gradients, encoded, node.scales))
        if len(kept[-1]) != len(memory):
            raise ValueError(
                f"{type(codec).__name__}.update gives {len(kept[-1])} tensors; allowed are "
                f"{len(memory)}, as init gives"
            )
    unsent = [n.gradients if memory else [] for n, memory in zip(nodes, memories, strict=True)]
    return NodeCodes(codes, [node.scales for node in nodes], kept, unsent)


def dropout_seed(key: DrawKey) -> tf.Tensor:
    """Returns the seed of the draws that a node's layers make at a step: int32 [2]."""
    base = tf.bitcast(tf.reshape(key.seed, [1]), tf.int32)[0]
    mixed = tf.random.experimental.stateless_fold_in(base, tf.cast(key.step, tf.int32))
    return tf.random.experimental.stateless_fold_in(mixed, key.node)
