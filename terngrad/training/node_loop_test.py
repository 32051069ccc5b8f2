"""Laws of the loop over nodes."""

import threading

import numpy as np
import tensorflow as tf

from terngrad.training.node_loop import for_each_node

_LONGEST_SECS = 120.0  # only a failing test takes so long


def test_each_node_has_its_own_results():
    specs = [
        tf.TensorSpec([2], tf.float32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([1, 3], tf.float32),
    ]
    traced = []

    def compute(node):
        traced.append(node)
        wide = tf.cast(node, tf.float32)
        return [tf.fill([2], wide), 10 * node, tf.fill([1, 3], -wide)]

    @tf.function(autograph=False)
    def run():
        return for_each_node(5, compute, specs, [[0, 2], [1]])

    for node, (pair, integer, row) in enumerate(run()):
        np.testing.assert_array_equal(pair, [node] * 2)
        assert int(integer) == 10 * node
        np.testing.assert_array_equal(row, [[-node] * 3])
    assert len(traced) == 1


def test_results_leave_the_loop_while_others_are_computed():
    """The last node's second result waits until all first ones were used outside the loop."""
    used, nodes = threading.Event(), 3
    specs = [tf.TensorSpec([], tf.float32)] * 2

    def late(node):
        if node == nodes - 1 and not used.wait(_LONGEST_SECS):
            return np.float32(np.nan)
        return np.float32(node)

    def use(*values):
        used.set()
        return np.float32(sum(values))

    def compute(node):
        return [tf.cast(node, tf.float32), tf.numpy_function(late, [node], tf.float32, False)]

    @tf.function(autograph=False)
    def run():
        found = for_each_node(nodes, compute, specs, [[0], [1]])
        total = tf.numpy_function(use, [early for early, _ in found], tf.float32, False)
        return total, [late for _, late in found]

    total, values = run()
    assert float(total) == 3 and [float(value) for value in values] == [0, 1, 2]
