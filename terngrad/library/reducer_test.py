"""Reducers in one process: the bits of the programs' step, and what is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.examples import OwnScaleTernaryCodec
from terngrad.codecs.factory import make_codecs
from terngrad.codecs.registry import CODECS
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.library.group import Group
from terngrad.library.reducer import Reducer, ReducerState, names_of
from terngrad.testing import nets
from terngrad.training import runtime, schedules
from terngrad.training.classifier import Classifier
from terngrad.training.optimizers import Momentum
from terngrad.training.reduction import Reduction
from terngrad.training.step import TrainStep

ALONE = Group()


@pytest.mark.parametrize(
    ("path", "bits", "draws", "scale_by", "sum_codec"),
    [
        ("ternary-feedback", 0, "independent", "variable", "exact"),
        ("5-level-feedback", 0, "independent", "channel", "exact"),
        ("ternary", 1, "independent", "variable", "exact"),
        ("ternary", 1, "antithetic", "channel", "exact"),
        ("5-level", 2, "antithetic", "variable", "exact"),
        ("255-level", 8, "independent", "variable", "exact"),
        ("ternary", 1, "antithetic", "channel", "ternary"),
        ("ternary-feedback", 0, "independent", "variable", "ternary"),
    ],
)
def test_law_4_a_loop_by_hand_has_the_bits_of_the_training_step_of_the_programs(
    path, bits, draws, scale_by, sum_codec
):
    """Also with a codec that has a memory."""
    batches = list(nets.make_batches().take(4))
    chosen = {"grad_bits": bits} if bits else {"codec": path}
    clip_factor = 2.5 if bits else 0.0
    how = {"draws": draws, "scale_by": scale_by, "sum_codec": sum_codec}
    policy = Policy(clip_factor=clip_factor, **how, **chosen)

    programs = Classifier(nets.make_model())
    kernels = runtime.kernels().kernels
    layout = make_layout(programs.names, [v.shape for v in programs.variables], policy)
    codecs, count = make_codecs(layout, kernels), tf.Variable(0, dtype=tf.int64)
    optimizer, rate = Momentum(programs.variables, 0.9), schedules.fixed(0.05)
    reduction = Reduction(codecs, LocalExchange(2, kernels), count, 3)
    step = TrainStep(programs, reduction, optimizer, rate, None)
    theirs = tf.function(step, autograph=False)

    own = Classifier(nets.make_model())
    settings = {"gradients": path, "clip_factor": clip_factor, "seed": 3, "nodes": 2} | how
    reducer = Reducer(own.variables, ALONE, **settings)
    momentum = Momentum(own.variables, 0.9)

    @tf.function(autograph=False)
    def ours(images, labels):
        seed = tf.zeros([2], tf.int32)  # the net has no dropout
        halves = zip(tf.split(images, 2), tf.split(labels, 2), strict=True)
        means = reducer([own.gradients(*half, seed)[0] for half in halves])
        momentum.apply(means, tf.constant(0.05), tf.constant(0))

    for batch in batches:
        theirs(*batch)
        ours(*batch)
    for mine, other in zip(own.variables, programs.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, (3, 4.0, "channel", "antithetic", 1024)),
        ({"clip_factor": 0, "scale_by": "variable"}, (3, 0.0, "variable", "antithetic", 1024)),
        ({"gradients": "ternary"}, (1, 2.5, "variable", "independent", 1)),
        (
            {"gradients": "15-level", "draws": "independent"},
            (4, 5.0, "channel", "independent", 1024),
        ),
        ({"gradients": "255-level"}, (8, 0.0, "variable", "independent", 1)),
        ({"gradients": "5-level-feedback"}, (32, 0.0, "variable", "independent", 1)),
        ({"gradients": "float16"}, (16, 0.0, "variable", "independent", 1)),
        ({"gradients": OwnScaleTernaryCodec}, (32, 0.0, "variable", "independent", 1)),
    ],
)
def test_what_is_not_named_suits_the_codec(settings, wanted):
    policy = Reducer(variables(), ALONE, **settings).layout.policy
    names = ("grad_bits", "clip_factor", "scale_by", "draws", "size_to_binarize")
    assert tuple(getattr(policy, name) for name in names) == wanted


def test_a_checkpoint_of_the_state_goes_on_with_the_same_bits(tmp_path):
    path = "ternary-feedback"
    gradients = [tf.reshape(tf.range(12.0), [4, 3]), tf.ones([3])]
    make = lambda: Reducer(variables(), ALONE, gradients=path)
    first, second = make(), make()
    first(gradients)
    saved = tf.train.Checkpoint(reducer=first.state).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(reducer=second.state).restore(saved).assert_consumed()
    for _ in range(3):
        for one, other in zip(first(gradients), second(gradients), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_what_was_not_sent_is_added_to_the_next_gradients(share):
    kept = {"gradients": "ternary-feedback", "memory_decay": share}
    gradient = [tf.reshape(tf.range(12.0), [4, 3]), tf.constant([1.0, -2.0, 4.0])]
    reducer = Reducer(variables(), ALONE, **kept)
    sent = reducer(gradient)
    corrected = [g + share * (g - s) for g, s in zip(gradient, sent, strict=True)]
    for found, wanted in zip(
        reducer(gradient), Reducer(variables(), ALONE, **kept)(corrected), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert np.any(np.not_equal(found, 0))


def variables():
    return [tf.Variable(tf.zeros([4, 3]), name="kernel"), tf.Variable(tf.zeros([3]), name="kernel")]


def test_gradients_may_be_sparse_or_missing_and_keep_their_types():
    reducer = Reducer(variables(), ALONE, gradients="float32")
    sparse = tf.IndexedSlices(tf.ones([2, 3], tf.float16), tf.constant([1, 1]), tf.constant([4, 3]))
    for call in (reducer, tf.function(reducer)):
        mean, missing = call([sparse, None])
        assert missing is None
        assert mean.dtype == tf.float16
        assert mean.numpy().tolist() == [[0] * 3, [2] * 3, [0] * 3, [0] * 3]
    assert int(reducer.state.step) == 2
    assert reducer.layout.names == ("kernel", "kernel_1")
    assert reducer.bits_per_parameter == 32


@pytest.mark.parametrize("missing_node", [0, 1])
def test_a_gradient_that_one_of_two_nodes_lacks_counts_as_zeros(missing_node):
    reducer = Reducer(variables(), ALONE, gradients="float32", nodes=2)
    given = [[tf.ones([4, 3], tf.float16), None], [tf.ones([4, 3], tf.float16), None]]
    given[missing_node][0] = None
    mean, missing = reducer(given)
    assert missing is None
    assert mean.dtype == tf.float16
    assert mean.numpy().tolist() == [[0.5] * 3] * 4


def test_a_memory_of_another_share_of_the_sums_is_not_restored(tmp_path):
    def state_of_share(size, value):
        memory = {"memory/0/0": tf.Variable([value]), "kept_sums/0/0": tf.Variable([value] * size)}
        return ReducerState(tf.Variable(3, dtype=tf.int64), memory)

    path = tf.train.Checkpoint(reducer=state_of_share(4, 1.0)).write(str(tmp_path / "state"))
    for size, expected in ((4, [1.0] * 4), (3, [0.0] * 3)):
        state = state_of_share(size, 0.0)
        tf.train.Checkpoint(reducer=state).read(path)
        own, share = state.memory.values()
        assert own.numpy().tolist() == [1.0]
        assert share.numpy().tolist() == expected


def test_calls_in_one_function_follow_each_other():
    reducer = Reducer(variables(), ALONE, gradients="ternary")
    gradients = [tf.ones([4, 3]), tf.ones([3])]

    @tf.function
    def twice():
        reducer(gradients)
        return reducer(gradients)

    assert [mean.numpy().tolist() for mean in twice()] == [[[1.0] * 3] * 4, [1.0] * 3]
    assert int(reducer.state.step) == 2


@pytest.mark.parametrize(
    ("gradients", "why"),
    [
        ([tf.ones([4, 3])], "reducer: 1 gradients; allowed are 2"),
        ([tf.ones([4, 3]), tf.ones([4])], r"gradient of kernel_1 has the shape \(4,\); .* \(3,\)"),
        ([tf.ones([4, 3], tf.int32), None], "gradient of kernel is int32, not of a float type"),
    ],
)
def test_wrong_gradients_are_named(gradients, why):
    with pytest.raises(ValueError, match=why):
        Reducer(variables(), ALONE)(gradients)


@pytest.mark.parametrize(
    ("given", "settings", "why"),
    [
        ([tf.Variable(1)], {}, "reducer: Variable is int32; allowed are float types"),
        (
            None,
            {"gradients": "half"},
            "'half'; allowed are ternary, 5-level, 7-level, 15-level, 255-level, float32, float16",
        ),
        (None, {"clip_factor": -1.0}, "clip_factor is -1.0; allowed are finite numbers from 0 on"),
        (None, {"clip_factor": np.inf}, "clip_factor is inf; allowed are finite numbers from 0"),
        (
            None,
            {"scale_by": "row"},
            "scale_by is 'row'; allowed are variable, channel, or block:N",
        ),
        (None, {"bucket_elements": 0}, "bucket_elements is 0; allowed are 1 and more"),
        (None, {"draws": "x"}, "draws is 'x'; allowed are independent, antithetic"),
        (None, {"sum_codec": "x"}, "sum_codec is 'x'; allowed are exact, ternary"),
        (
            None,
            {"sum_codec": "ternary", "gradients": "float32"},
            "sum_codec is ternary; allowed is exact with gradients as float32, which have no codes",
        ),
        (None, {"seed": -1}, r"seed is -1; allowed are 0 to 2\^64 - 1"),
        ([], {}, "reducer: there are no variables"),
        (None, {"float_layers": ["dense"]}, "no variable is in layer 'dense'"),
        (None, {"nodes": 0}, "nodes is 0; allowed are 1 and more"),
        (None, {"size_to_binarize": -1}, "size_to_binarize is -1; allowed are 0 and more"),
    ],
)
def test_wrong_settings_of_a_reducer_are_named(given, settings, why):
    with pytest.raises(ValueError, match=why):
        Reducer(variables() if given is None else given, ALONE, **settings)


def test_a_codec_of_the_registry_has_a_short_name_for_a_reducer(monkeypatch):
    monkeypatch.setitem(CODECS, "three", CODECS["ternary"])
    bits = lambda name: Reducer(variables(), ALONE, gradients=name).bits_per_parameter
    assert bits("three") == bits("ternary") < bits("float32")


def test_law_10_sums_are_not_coded_again_where_a_step_may_be_made_without_an_owner():
    group = Group(0, 1, is_elastic=True)
    with pytest.raises(
        ValueError, match="sum_codec is ternary; allowed is exact with num_replicas"
    ):
        Reducer(variables(), group, sum_codec="ternary")


@pytest.mark.parametrize(
    ("given", "settings", "why"),
    [
        (None, {"gradients": 3}, "gradients is 3; allowed are ternary, 5-level"),
        (None, {"float_layers": "dense"}, "float_layers is 'dense'; allowed is a list of names"),
        (None, {"float_layers": None}, "float_layers is None; allowed is a list of names"),
        (None, {"memory_decay": "a"}, "memory_decay is 'a'; allowed are numbers from 0 to 1"),
        (None, {"scale_by": 128}, "scale_by is 128; allowed are variable, channel, or"),
        (None, {"clip_factor": "2.5"}, "clip_factor is '2.5'; allowed are numbers"),
        (None, {"seed": 1.5}, "seed is 1.5; allowed are integers"),
        ([np.ones(3)], {}, "list of tf.Variables or Keras variables has an item of type ndarray"),
    ],
)
def test_settings_of_a_reducer_that_have_another_type_are_named(given, settings, why):
    with pytest.raises(TypeError, match=why):
        Reducer(given or variables(), ALONE, **settings)


def test_numpys_numbers_are_settings_as_pythons_are():
    given = {"gradients": "ternary", "clip_factor": 4, "size_to_binarize": 2, "seed": 3}
    whole = {name: np.int64(given[name]) for name in ("size_to_binarize", "seed")}
    theirs = given | whole | {"clip_factor": np.float32(4), "nodes": np.int32(1)}
    ours, others = (Reducer(variables(), ALONE, **settings) for settings in (given, theirs))
    assert others.layout.fingerprint() == ours.layout.fingerprint()
    gradients = [tf.random.stateless_normal([4, 3], [1, 2]), tf.ones([3])]
    for mean, other in zip(ours(gradients), others(iter(gradients)), strict=True):
        np.testing.assert_array_equal(other, mean)


def test_variables_of_one_name_have_names_of_their_own():
    some = [tf.Variable([1.0], name=name) for name in ("w", "w", "w_1", "w_1")]
    assert names_of(some) == ["w", "w_1", "w_1_1", "w_1_2"]


def test_variables_without_values_are_reduced():
    empty = Reducer([tf.Variable(tf.zeros([0, 3]))], ALONE, gradients="ternary", size_to_binarize=0)
    assert empty.bits_per_parameter == 32.0  # of its scale
    (mean,) = empty([tf.zeros([0, 3])])
    assert mean.shape == (0, 3)


class ForgetfulCodec(OwnScaleTernaryCodec):
    """Has a memory, but no update of it."""

    def init(self):
        """Returns zeros."""
        return [tf.zeros(shape) for shape in self.shapes]


def test_law_10_a_codec_that_does_not_update_its_memory_is_named():
    reducer = Reducer(variables(), ALONE, gradients=ForgetfulCodec)
    with pytest.raises(ValueError, match=r"ForgetfulCodec\.update gives 0 tensors; allowed are 2,"):
        reducer([tf.ones([4, 3]), tf.ones([3])])


def test_a_gradient_may_be_a_list_of_numbers_and_xla_is_refused():
    reducer = Reducer([tf.Variable([1.0, 2.0])], ALONE, gradients="float32")
    (mean,) = reducer([[3.0, 4.0]])
    np.testing.assert_array_equal(mean, [3.0, 4.0])
    compiled = tf.function(lambda: reducer([tf.ones([2])]), autograph=False, jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True: XLA cannot compile the exchange"):
        compiled()


def test_other_tensors_have_means_over_the_nodes_that_belong_to_the_step():
    reducer = Reducer([tf.Variable(tf.ones(3))], ALONE, nodes=2, gradients="float32")

    @tf.function(autograph=False)
    def step():
        gradients = [[tf.ones(3)], [3.0 * tf.ones(3)]]
        others = [[tf.constant(1.0), tf.constant([1.0, 2.0])], [tf.constant(3.0), tf.zeros(2)]]
        return reducer.reduce(gradients, others=others)

    found = step()
    np.testing.assert_array_equal(found.means[0], [2.0] * 3)
    assert float(found.others[0]) == 2.0
    np.testing.assert_array_equal(found.others[1], [0.5, 1.0])
    assert int(reducer.state.step) == 1


def test_how_variables_are_called_is_told_where_they_differ(monkeypatch):
    told = {}
    monkeypatch.setattr(Group, "agree", lambda _, found, what: told.update(found))
    for name in ("a", "b"):
        variables = [tf.Variable([1.0], name=f"{name}/{each}") for each in ("w", "x", "y")]
        Reducer(variables, Group())
        found = told["variables of the reducer"]
        assert re.fullmatch(rf"3 \({name}/w, {name}/y; [0-9a-f]{{32}}\)", found)
