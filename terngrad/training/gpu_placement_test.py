"""Where a step with gradients on a GPU computes. TensorFlow traces it although there is no GPU."""

import contextlib
import math

import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.codecs.sum_codec import sum_codecs
from terngrad.connect.config import ConnectConfig
from terngrad.exchange import sockets
from terngrad.exchange.local import LocalExchange
from terngrad.gpu import ops
from terngrad.layout import Policy, make_layout
from terngrad.ops.gradient_kernels import Sums
from terngrad.ops.library import PATHS
from terngrad.planes import GROUP
from terngrad.testing.addresses import free_addresses
from terngrad.training.memory import Memory
from terngrad.training.optimizers import Momentum, RMSProp
from terngrad.training.reduction import Reduction

_SHAPES = [(64, 48), (48,), (3, 3, 8, 16)]
_GPU = "/device:GPU:0"

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.fixture
def kernels(monkeypatch):
    """Those for GPUs, although there is none."""
    monkeypatch.setattr(ops, "prepare", lambda: ("sm_90",))
    return ops.GpuKernels()


def traced(kernels, policy, towers=(_GPU,), as_sums=False):
    """Returns the graph of an exchange over sockets with a node on each tower, and the codecs."""
    layout = make_layout([f"v{i}/kernel" for i in range(3)], _SHAPES, policy)
    codecs = make_codecs(layout, kernels)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    config = ConnectConfig(free_addresses(1), 0, (), 10.0)
    with contextlib.closing(sockets.start(config, b"secret")) as transport:
        exchange = transport.exchange(len(towers), kernels, step)
        memory = Memory(codecs, 0, len(towers))  # on the CPU: its variables are made, not traced
        reduction = Reduction(codecs, exchange, step, 1, towers, memory)

        @tf.function(autograph=False)
        def reduce():
            gradients = []
            for i, tower in enumerate(towers):
                with tf.device(tower):
                    gradients.append([tf.random.stateless_normal(each, [1, i]) for each in _SHAPES])
            reduction.reduce(gradients, reduction.keys(step.read_value()), as_sums=as_sums)

        return reduce.get_concrete_function().graph, codecs


def placed_in(graph):
    """Returns the devices of native ops, by their names; "" = on a GPU, if TensorFlow has one.

    TensorFlow prefers GPUs for operations with a kernel for them, which these have: see
    terngrad/gpu/ops_test.py.
    """
    found = {}
    for op in graph.get_operations():
        if op.type.startswith("Terngrad"):
            name = op.type.removeprefix("Terngrad")
            assert name == "Join" or op.get_attr("path") == b"gpu"
            found.setdefault(name, set()).add(op.device)
    return found


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
    graph, codecs = traced(kernels, policy, as_sums=as_sums)
    expected = {op: {_GPU} for op in on_gpu} | {"Join": {"/device:CPU:0"}}
    assert placed_in(graph) == expected | ({} if as_sums else {"Decode": {""}})
    limit = sum(codec.scale_count for codec in codecs)
    for op in graph.get_operations():
        for tensor in op.inputs if "CPU" in op.device else ():
            if "GPU" in tensor.op.device and tensor.dtype != tf.uint32:
                assert tensor.shape.num_elements() <= limit, tensor


def test_each_gpu_encodes_its_own_gradients_and_one_adds_the_codes(kernels):
    towers = [_GPU, "/device:GPU:1"]
    graph, _ = traced(kernels, Policy(grad_bits=1), towers)
    own = {op: set(towers) for op in ("Stats", "Encode")}
    shared = {"Sum": {""}, "Decode": {""}, "Join": {"/device:CPU:0"}}
    assert placed_in(graph) == own | shared


@pytest.mark.parametrize("make", [Momentum, RMSProp])
def test_updates_with_sums_are_made_where_the_weights_are(kernels, make):
    with tf.Graph().as_default() as graph:
        with tf.device(_GPU):
            weights = [tf.Variable(tf.zeros(shape)) for shape in _SHAPES]
            optimizer = make(weights, 0.9, kernels)
        assert optimizer.takes_sums
        rows = -(-sum(map(math.prod, _SHAPES)) // GROUP)
        sums = Sums((0, 1, 2), tf.zeros([rows, 2], tf.uint32), tf.ones([3]), tf.constant(1))
        optimizer.apply_sums(sums, tf.constant(0.1), tf.constant(0))
    (update,) = (op for op in graph.get_operations() if op.type == "TerngradUpdate")
    assert placed_in(graph) == {"Update": {""}}  # and so where its variables are
    handles = [each.op.device for each in update.inputs if each.dtype == tf.resource]
    assert handles and set(handles) == {_GPU}


def test_a_graph_with_a_gpu_in_it_is_imported(kernels):
    graph, _ = traced(kernels, Policy(grad_bits=1))
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.as_graph_def(), name="")
    assert placed_in(imported) == placed_in(graph)


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
