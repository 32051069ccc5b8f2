"""Operations between processes that do not wait for each other."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import ops  # only this module knows the current function


def unordered(result: tf.Tensor | tf.Operation) -> tf.Tensor | tf.Operation:
    """Lets an operation, or that which yields a tensor, start as soon as its input is ready.

    tf.function would run such operations one after the other, in the order in which they were
    traced, so that none could run while another waits for its gradients.
    """
    if tf.executing_eagerly():  # perhaps within the trace of a function that it is no part of
        return result
    graph = ops.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(getattr(result, "op", result))
    return result
