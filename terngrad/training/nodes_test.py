"""What the nodes of a process encode and get, whether codes leave early or not."""

import contextlib

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
from terngrad.training.nodes import exchange_nodes


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    ("policy", "leave_early"),
    [
        *[(name, True) for name in ("ternary", "antithetic", "5-level", "255-level", "mixed")],
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
