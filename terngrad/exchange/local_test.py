"""Laws of the local exchange."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.exchange.exchange import tree_sum
from terngrad.exchange.local import LocalExchange
from terngrad.ops.reference import ReferenceKernels


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_max_is_the_elementwise_largest(nodes):
    vectors = np.random.default_rng(1).normal(size=(nodes, 5)).astype(np.float32)
    got = LocalExchange(nodes, ReferenceKernels()).max([tf.constant(v) for v in vectors], "max")
    np.testing.assert_array_equal(got, vectors.max(0))


def test_max_keeps_infinity():
    got = LocalExchange(2, ReferenceKernels()).max(
        [tf.constant([1.0]), tf.constant([np.inf])], "max"
    )
    assert got.numpy() == np.inf


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_law_4_aligned_blocks_of_nodes_add_alike(nodes):
    rng = np.random.default_rng(2)
    values = [tf.constant(rng.normal(size=1000), tf.float32) for _ in range(nodes)]
    whole = tf.function(lambda: tree_sum(values), autograph=False)()
    for block in (2**k for k in range(nodes.bit_length())):
        parts = [tree_sum(values[i : i + block]) for i in range(0, nodes, block)]
        np.testing.assert_array_equal(whole, tree_sum(parts))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_mean_keeps_the_type(dtype):
    nodes = [[tf.constant([1.0, 2.0], dtype)], [tf.constant([2.0, 4.0], dtype)]]
    (got,) = LocalExchange(2, ReferenceKernels()).mean(nodes, "mean")
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, [1.5, 3.0])


@pytest.mark.parametrize("nodes", [0, 65537])
def test_number_of_nodes_out_of_range_is_named(nodes):
    with pytest.raises(ValueError, match=f"{nodes} nodes; allowed are 1 to 65536"):
        LocalExchange(nodes, ReferenceKernels())
