"""Where a step with gradients on a GPU computes. TensorFlow traces it although there is no GPU."""

import contextlib

import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.codecs.sum_codec import sum_codecs
from terngrad.connect.config import ConnectConfig
from terngrad.exchange import sockets
from terngrad.exchange.local import LocalExchange
from terngrad.gpu import ops
from terngrad.layout import Policy, make_layout
from terngrad.ops.library import PATHS
from terngrad.testing.addresses import free_addresses
from terngrad.training.memory import Memory
from terngrad.training.reduction import Reduction

_SHAPES = [(64, 48), (48,), (3, 3, 8, 16)]
_GPU = "/device:GPU:0"

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture
def kernels(monkeypatch):
    """Those for GPUs, although there is none."""
    monkeypatch.setattr(ops, "prepare", lambda: ("sm_90",))
    return ops.GpuKernels()


@pytest.mark.parametrize("as_sums", [False, True])
@pytest.mark.parametrize(
    ("policy", "on_gpu"),
    [
        (Policy(grad_bits=1, clip_factor=2.5), {"Stats", "Encode"}),
        (Policy(grad_bits=2, scale_by="channel", draws="antithetic"), {"Stats", "Encode"}),
        (Policy(codec="ternary-feedback"), {"Correct", "Encode", "Subtract"}),
    ],
)
def test_only_codes_scales_and_their_sums_leave_the_gpu(kernels, policy, on_gpu, as_sums):
    layout = make_layout([f"v{i}/kernel" for i in range(3)], _SHAPES, policy)
    codecs = make_codecs(layout, kernels)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    config = ConnectConfig(free_addresses(1), 0, (), 10.0)
    with contextlib.closing(sockets.start(config, b"secret")) as transport:
        exchange = transport.exchange(1, kernels, step)
        memory = Memory(codecs, 0, 1)  # on the CPU: its variables are made, not traced
        reduction = Reduction(codecs, exchange, step, 1, [_GPU], memory)

        @tf.function(autograph=False)
        def reduce():
            with tf.device(_GPU):
                gradients = [tf.random.stateless_normal(shape, [1, 2]) for shape in _SHAPES]
            reduction.reduce([gradients], reduction.keys(step.read_value()), as_sums=as_sums)

        graph = reduce.get_concrete_function().graph
    placed = {}
    for op in graph.get_operations():
        if op.type.startswith("Terngrad"):
            placed.setdefault(op.type.removeprefix("Terngrad"), set()).add(op.device)
    expected = {op: {_GPU} for op in on_gpu} | {"Join": {"/device:CPU:0"}}
    assert placed == expected | ({} if as_sums else {"Decode": {""}})  # it has no other kernel
    limit = sum(codec.scale_count for codec in codecs)
    for op in graph.get_operations():
        for tensor in op.inputs if "CPU" in op.device else ():
            if "GPU" in tensor.op.device and tensor.dtype != tf.uint32:
                assert tensor.shape.num_elements() <= limit, tensor


def test_means_are_coded_again_by_the_native_kernels_of_the_cpu(kernels):
    policy = Policy(grad_bits=1, sum_codec="ternary", size_to_binarize=0)
    codecs = make_codecs(make_layout(["v/kernel"], [(64, 48)], policy), kernels)
    (maker,) = sum_codecs(codecs, LocalExchange(1, kernels))

    @tf.function(autograph=False)
    def code(words):
        with tf.device("/CPU:0"):
            return maker._code(words, tf.constant([0.1]), tf.constant(1), maker.init())

    graph = code.get_concrete_function(tf.TensorSpec([96, 2], tf.uint32)).graph
    ops = {op.type: op for op in graph.get_operations() if op.type.startswith("Terngrad")}
    assert ops.keys() == {f"Terngrad{op}" for op in ("Decode", "Correct", "Encode", "Subtract")}
    assert all(op.get_attr("path").decode() in PATHS for op in ops.values())
