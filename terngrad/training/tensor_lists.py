"""Lists of tensors of any shapes in one tensor. They hold references: nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


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
