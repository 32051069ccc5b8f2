"""A loop over nodes whose results leave it as soon as they exist, in lists of tensors.

A list is one tensor, of values of any shapes. It holds references: nothing is copied.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf


def for_each_node(
    nodes: int,
    compute: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    specs: Sequence[tf.TensorSpec],
    groups: Sequence[Sequence[int]],
) -> list[list[tf.Tensor]]:
    """Returns the results of `compute` for each node, with a graph as large as that of one node.

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
