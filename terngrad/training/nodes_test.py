"""What the nodes of a process encode and get, whether codes leave early or not."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.connect.config import ConnectConfig
from terngrad.draws import DrawKey
from terngrad.exchange import sockets
from terngrad.layout import make_layout
from terngrad.ops.gradient_kernels import Sums
from terngrad.ops.mesh import Encoding
from terngrad.testing.addresses import free_addresses
from terngrad.testing.conformance import NAMES, POLICIES, SHAPES
from terngrad.training.nodes import exchange_nodes, for_each_node

_LONGEST_SECS = 120.0  # only a failing test takes so long


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    ("policy", "leave_early"),
    [
        *[(name, True) for name in ("ternary", "antithetic", "channel", "block", "mixed")],
        *[(name, True) for name in ("5-level", "7-level", "15-level", "255-level")],
        *[(name, True) for name in ("ternary-feedback", "5-level-feedback")],
        *[(name, False) for name in ("unpacked", "own scale")],
    ],
)
def test_law_5_codes_that_leave_early_are_those_of_whole_buckets(policy, leave_early, monkeypatch):
    from terngrad.ops.native import NativeKernels

    kernels = NativeKernels()
    codecs = make_codecs(make_layout(NAMES, SHAPES, POLICIES[policy], 100), kernels)
    gradients = [tf.random.stateless_normal(shape, [3, i]) for i, shape in enumerate(SHAPES)]
    key = DrawKey(tf.constant(3, tf.uint64), tf.constant(5, tf.int64), tf.constant(0))
    config = ConnectConfig(free_addresses(1), 0)
    with contextlib.closing(sockets.start(config, b"secret")) as transport:
        exchange = transport.exchange(1, kernels, tf.Variable(0, dtype=tf.int64))
        early: list[bool] = []
        join = transport.mesh.join_codes
        note = lambda local, *given: (
            early.append(isinstance(local, Encoding)) or join(local, *given)
        )
        monkeypatch.setattr(transport.mesh, "join_codes", note)

        def run(as_sums):
            found = []
            for codec in codecs:
                memories = [codec.init()]
                node, means = exchange_nodes(
                    [gradients], codec, exchange, [key], ["/CPU:0"], memories, as_sums=as_sums
                )
                if isinstance(means, Sums):
                    assert means.variables == codec.variables
                    means = codec.kernels.decode(*means[1:4], codec.shapes, means.parts)
                found += [*node.codes[0], *node.scales, *means, *node.kept[0]]
            return found

        results = [tf.function(run, autograph=False)(as_sums) for as_sums in (False, True)]
        assert not any(early)
        monkeypatch.setattr(sockets, "_WHOLE_ELEMENTS", 0)
        for as_sums in (False, True):
            early.clear()
            results.append(tf.function(run, autograph=False)(as_sums))
            assert any(early) == leave_early
    for each in results[1:]:
        assert len(each) == len(results[0]) > 3
        for one, other in zip(results[0], each, strict=True):
            np.testing.assert_array_equal(one, other)


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
