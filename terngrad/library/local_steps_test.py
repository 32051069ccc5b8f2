"""Local steps of a custom loop: copies are equal after each exchange, errors are named."""

import collections
import re
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from terngrad.library.group import Group
from terngrad.library.local_steps import LocalSteps
from terngrad.testing.processes import finished, launch_environments
from terngrad.testing.programs.own_local_steps import LOCAL_STEPS

ALONE = Group()
STEPS = 4 * LOCAL_STEPS


def train(folder, workers, servers=0, fragments=1, overlap=0):
    """Runs the loop; returns what each worker wrote, and the output of all."""
    folder.mkdir()
    arguments = [str(folder), str(STEPS), str(fragments), str(overlap)]
    program = [sys.executable, "-m", "terngrad.testing.programs.own_local_steps", *arguments]
    done = finished([program] * (workers + servers), launch_environments(workers, servers))
    assert all(status == 0 for _, status in done), done
    return [np.load(folder / f"{i}.npz") for i in range(workers)], "".join(o for o, _ in done)


def assert_equal_bits(first, *others):
    for other in others:
        assert other.files == first.files
        for name in other.files:
            np.testing.assert_array_equal(first[name], other[name], err_msg=name)


@pytest.mark.slow
def test_law_4_copies_are_equal_after_each_exchange_on_each_engine(tmp_path):
    found, output = train(tmp_path / "sockets", 2)
    served, _ = train(tmp_path / "ps", 2, 1)
    assert sorted({int(name.split()[0]) for name in found[0]}) == [3, 6, 9, 12]
    assert_equal_bits(*found, *served)
    # law 7, with the exchange at the end
    assert len(re.findall(rf"bytes in {STEPS // LOCAL_STEPS + 1}\.", output)) == 2


@pytest.mark.slow
def test_law_4_fragments_are_equal_after_their_exchange_and_all_at_the_end(tmp_path):
    found, _ = train(tmp_path / "sockets", 2, fragments=3)
    served, _ = train(tmp_path / "ps", 2, 1, fragments=3)
    equal_at = collections.defaultdict(set)
    for name in found[0]:
        step, variable = name.split()
        equal_at[int(step)].add(variable)
    assert sorted(equal_at) == list(range(1, STEPS + 1))  # one of three fragments after each step
    assert equal_at[1] | equal_at[2] | equal_at[3] == equal_at[STEPS]
    assert equal_at[1] == equal_at[4] < equal_at[STEPS]
    assert_equal_bits(*found, *served)


@pytest.mark.slow
def test_law_4_shared_weights_are_equal_where_exchanges_overlap_with_steps(tmp_path):
    found, output = train(tmp_path / "sockets", 2, fragments=3, overlap=1)
    served, _ = train(tmp_path / "ps", 2, 1, fragments=3, overlap=1)
    assert len(found[0].files) == STEPS * len({name.split()[1] for name in found[0]})
    assert_equal_bits(*found, *served)
    # law 7: each fragment's in turn, then that under way and all
    assert len(re.findall(rf"bytes in {STEPS // 3 + 2}\.", output)) == 2


def test_fragments_take_turns_and_all_are_exchanged_at_the_end():
    weights = [tf.Variable(tf.zeros(n), name=name) for n, name in ((8, "a"), (3, "b"), (2, "c"))]
    local = LocalSteps(
        weights, ALONE, steps=4, fragments=2, learning_rate=1.0, gradients="ternary", seed=5
    )
    exchanged = lambda: [int(state.step) for state in local.state.reducers]
    for i, done in enumerate(([0, 0], [1, 0], [1, 0], [1, 1], [1, 1], [2, 1]), 1):
        for weight in weights:
            weight.assign_sub(tf.ones_like(weight))
        assert local.step() == (i % 2 == 0)
        assert exchanged() == done
    local.exchange()
    assert exchanged() == [3, 2]
    for weight, shared in zip(weights, local.state.shared, strict=True):
        np.testing.assert_array_equal(weight, shared)


def test_fragments_take_the_largest_seed_too():
    weights = [tf.Variable(tf.zeros(n), name=name) for n, name in ((8, "a"), (3, "b"))]
    local = LocalSteps(weights, ALONE, steps=2, fragments=2, gradients="ternary", seed=2**64 - 1)
    assert len(local.reducers) == 2


def test_law_10_float_layers_may_be_in_any_fragment():
    weights = [tf.Variable(tf.zeros(n), name=f"{name}/kernel") for n, name in ((8, "a"), (3, "b"))]
    local = LocalSteps(
        weights, ALONE, steps=2, fragments=2, gradients="ternary", float_layers=["b"]
    )
    assert [reducer.layout.coded for reducer in local.reducers] == [(0,), ()]
    with pytest.raises(ValueError, match="no variable is in layer 'c'"):
        LocalSteps(weights, ALONE, steps=2, fragments=2, float_layers=["c"])


def make(**settings):
    weights = [tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="kernel")]
    defaults = {"steps": 2, "gradients": "float32"}
    return weights[0], LocalSteps(weights, ALONE, **defaults | settings)


def test_an_exchange_is_a_step_of_nesterovs_momentum_with_the_delta():
    weights, local = make(learning_rate=0.5, momentum=0.9)
    start, velocity = weights.numpy(), 0.0
    for change in (0.25, -0.5):
        weights.assign_sub(tf.fill([2, 2], change))
        assert not local.step()
        weights.assign_sub(tf.fill([2, 2], change))
        assert local.step()
        velocity = 0.9 * velocity + 2 * change
        start = start - 0.5 * (2 * change + 0.9 * velocity)
        np.testing.assert_allclose(weights, start, rtol=1e-6)
    assert int(local.state.count) == 0


def test_with_overlap_a_delta_counts_a_round_later_and_later_changes_are_kept():
    weights, local = make(learning_rate=0.5, momentum=0.9, overlap=True)
    shared, delta, velocity = weights.numpy(), 0.0, 0.0
    for change in (0.25, -0.5, 1.0):
        for i in range(2):
            weights.assign_sub(tf.fill([2, 2], change))
            assert local.step() == (i == 1)
        velocity = 0.9 * velocity + delta
        shared = shared - 0.5 * (delta + 0.9 * velocity)
        delta = 2 * change
        np.testing.assert_allclose(local.state.shared[0], shared, rtol=1e-6)
        np.testing.assert_allclose(weights, shared - delta, rtol=1e-6)
    local.exchange()
    for _ in range(2):  # the exchange under way, and that of all
        velocity = 0.9 * velocity + delta
        shared, before = shared - 0.5 * (delta + 0.9 * velocity), shared
        delta = 0.0
    np.testing.assert_array_equal(weights, local.state.shared[0])
    np.testing.assert_allclose(weights, shared, rtol=1e-6, atol=1e-6)
    assert not np.allclose(shared, before)


def test_the_state_of_a_reducer_changes_when_the_exchange_under_way_ends():
    weights, local = make(gradients="ternary-feedback", overlap=True)
    for i in range(1, 7):
        weights.assign_sub(tf.random.stateless_normal([2, 2], [i, 1]))
        before = local.state.reducer.memory["memory/0/0"].numpy()
        local.step()
        assert int(local.state.reducer.step) == i // 2
        changes = i in (4, 6)  # the first delta is zero
        assert np.any(local.state.reducer.memory["memory/0/0"] != before) == changes


def test_law_10_overlap_is_refused_where_operations_have_an_order():
    group = Group()
    group.connection = types.SimpleNamespace(matches_by_order=True)
    with pytest.raises(ValueError, match=r"^overlap is True; allowed is False with MPI, which"):
        LocalSteps([tf.Variable([1.0])], group, steps=2, overlap=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_checkpoint_of_the_state_goes_on_with_the_same_bits(tmp_path, overlap):
    chosen = {"gradients": "ternary-feedback", "feedback": 0.5, "overlap": overlap}
    (first, one), (second, other) = make(**chosen), make(**chosen)
    draw = lambda i: tf.random.stateless_normal([2, 2], [i, 1])
    for i in range(3):
        first.assign_sub(draw(i))
        one.step()
    saved = tf.train.Checkpoint(w=first, local=one.state).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(w=second, local=other.state).restore(saved).assert_consumed()
    for i in range(3, 8):
        for weights, local in ((first, one), (second, other)):
            weights.assign_sub(draw(i))
            local.step()
        np.testing.assert_array_equal(first, second)
    assert np.any(one.state.reducer.memory["memory/0/0"])


def test_weights_of_half_precision_keep_their_type():
    weights = tf.Variable(tf.ones([4], tf.float16))
    local = LocalSteps(
        [weights], ALONE, steps=1, learning_rate=1.0, momentum=0.0, gradients="ternary"
    )
    weights.assign_sub(tf.ones([4], tf.float16))
    assert local.step()
    assert weights.dtype == tf.float16
    np.testing.assert_array_equal(weights, np.zeros(4))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize(("overlap", "fragments"), [(False, 1), (True, 1), (True, 2)])
def test_the_rounding_of_a_copy_of_half_precision_is_no_delta(dtype, overlap, fragments):
    weights = [tf.Variable(tf.ones([4], dtype), name=name) for name in "ab"]
    chosen = {"steps": 2, "fragments": fragments, "overlap": overlap, "momentum": 0.0}
    local = LocalSteps(weights, ALONE, gradients="float32", **chosen)
    for own in weights:
        own.assign_sub(tf.cast([0.25, 0.0625, 0.03125, 0.015625], dtype))
    for _ in range(4):  # with overlap the change counts in the second exchange
        local.step()
    before = [shared.numpy() for shared in local.state.shared]
    for i in range(8):
        local.step()
        if i == 3:
            local.exchange()
    for own, shared, value in zip(weights, local.state.shared, before, strict=True):
        np.testing.assert_array_equal(shared, value)
        np.testing.assert_array_equal(own, tf.cast(shared, dtype))
        assert np.any(tf.cast(own, tf.float32) != value)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"steps": 0}, ValueError, "steps is 0; allowed are 1 and more"),
        ({"fragments": 0}, ValueError, "fragments is 0; allowed are 1 and more"),
        ({"fragments": 4}, ValueError, "fragments is 4; allowed are divisors of steps, 2"),
        ({"fragments": 2}, ValueError, "2 fragments of 1 trained variables; allowed are 1 to 1"),
        ({"steps": 1.5}, TypeError, "steps is 1.5; allowed are integers"),
        ({"momentum": 2}, ValueError, "momentum is 2; allowed are numbers from 0 to 1"),
        ({"overlap": "False"}, TypeError, "overlap is 'False'; allowed are True and False"),
        ({"feedback": "a"}, TypeError, "feedback is 'a'; allowed are numbers"),
        ({"learning_rate": -1.0}, ValueError, "learning_rate is -1.0; allowed are finite numbers"),
        ({"nodes": 2}, TypeError, "nodes is no argument of LocalSteps"),
        ({"gradients": "none"}, ValueError, "gradients is 'none'; allowed are"),
        (
            {"averaged": [tf.Variable(1, name="seed")]},
            ValueError,
            "LocalSteps: averaged: seed:0 is int32; allowed are float variables",
        ),
    ],
)
def test_law_10_a_wrong_argument_is_named(settings, error, why):
    with pytest.raises(error, match=re.escape(why)):
        make(**settings)


def test_law_10_a_step_within_a_graph_is_refused():
    _, local = make()
    with pytest.raises(ValueError, match=r"LocalSteps\.step: call it outside tf.function"):
        tf.function(local.step, autograph=False)()
