"""Operations between processes that need not wait for each other."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import ops  # the one place that knows the function under way


def unordered(result: tf.Tensor) -> tf.Tensor:
    """Lets the operation that yields `result` start as soon as its input is there.

    tf.function would chain such operations in the order in which they were traced, so that none
    could overlap with another's wait for its gradients.
    """
    graph = ops.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(result.op)
    return result
