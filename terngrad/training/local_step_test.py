"""Laws of local steps: one step is today's, several are a node's own, sums and memory are exact.

Each variable is in one fragment, and no fragment is much larger than another.
"""

import re

import numpy as np
import pytest
import tensorflow as tf

from terngrad.testing.local_training import (
    FEEDBACK,
    FLOAT,
    Fragmented,
    Local,
    Plain,
    assert_close,
    assert_same_bits,
)
from terngrad.testing.nets import make_batches, make_model
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.local_step import make_fragments
from terngrad.training.slots import SLOTS


def test_one_local_step_of_sgd_with_outer_rate_1_is_a_step_with_the_mean_gradient():
    plain, local = Plain(FLOAT, 4, "gd"), Local(FLOAT, 4, "gd", local_steps=1)
    for training in (plain, local):
        training.run(6)
    assert_close(local.values(), plain.values())
    assert_close(*([v.numpy() for v in each.averages.shadows] for each in (local, plain)))


@pytest.mark.parametrize("optimizer", SLOTS)
def test_local_steps_of_one_node_with_outer_rate_1_are_its_optimizers_steps(optimizer):
    make = lambda: make_model(batch_norm=True)
    plain = Plain(FLOAT, 1, optimizer, make())
    local = Local(FLOAT, 1, optimizer, make(), local_steps=3)
    losses = [plain.run(1, make_batches().skip(i)).losses.entropy for i in range(6)]
    outcome = local.run(2)
    assert (int(local.step), int(local.rounds), int(outcome.done)) == (6, 2, 2)
    assert_close(local.values(), plain.values())
    np.testing.assert_allclose(outcome.losses.entropy, np.mean(losses[3:]), rtol=1e-5)
    assert float(outcome.learning_rate) == pytest.approx(0.025)  # of the sixth step


@pytest.mark.parametrize("optimizer", SLOTS)
def test_fragments_of_one_node_with_outer_rate_1_are_its_optimizers_steps(optimizer):
    make = lambda: make_model(batch_norm=True)
    plain = Plain(FLOAT, 1, optimizer, make())
    training = Fragmented(FLOAT, 1, optimizer, make(), local_steps=4)
    plain.run(8)
    training.run(4)
    assert (int(training.step), int(training.rounds)) == (8, 4)
    assert_close([v.numpy() for v in training.inner[0].kept], [v.numpy() for v in plain.variables])
    last = training.fragment_indices[1]  # the fragment that was exchanged last
    of_last = lambda each: [each.variables[i].numpy() for i in last]
    assert_close(of_last(training), of_last(plain))


def test_an_exchange_changes_only_its_fragment_by_the_mean_change_since_the_last():
    training = Fragmented(FLOAT, 2, local_steps=4, rate=0.5)
    batches = iter(make_batches())
    read = lambda variables: [v.numpy() for v in variables]
    for k in range(5):
        before, averages = read(training.variables), read(training.averages.shadows)
        runner = training.runners[k % 2]
        observed = runner.one(batches)
        exchanged = training.fragment_indices[k % 2]
        for i, variable in enumerate(training.variables):
            delta = observed.gradients[i].numpy()  # of node 0
            own = [inner.kept[i].numpy() for inner in training.inner]
            shadow = training.averages.shadows[i].numpy()
            if i in exchanged:
                assert np.any(variable.numpy() != before[i])
                assert np.any(shadow != averages[i])
                assert_same_bits(own, [variable.numpy()] * 2)
            else:
                assert_same_bits([variable.numpy(), shadow], [before[i], averages[i]])
                np.testing.assert_array_equal(before[i] - own[0], delta)
                assert np.any(own[0] != own[1])


def test_law_9_fragments_send_and_keep_the_change_and_their_own_memory():
    training = Fragmented(FEEDBACK, 1, local_steps=2, feedback=0.5)
    batches = iter(make_batches())
    training.run(4, batches)
    name = f"memory/0/{max(training.fragment_indices[0])}"
    i = max(training.fragment_indices[0])
    kept = {n: v.numpy() for n, v in training.memory.variables.items() if n.startswith("memory/")}
    delta = training.runners[0].one(batches).gradients[i].numpy()
    sent = training.outer.slots["momentum"][i].numpy()  # the mean of one node, without momentum
    now = {n: training.memory.variables[n].numpy() for n in kept}
    assert np.any(kept[name])
    np.testing.assert_allclose(sent + now[name], delta + 0.5 * kept[name], rtol=1e-5, atol=1e-7)
    others = [f"memory/0/{i}" for i in training.fragment_indices[1] if f"memory/0/{i}" in kept]
    assert_same_bits([kept[n] for n in others], [now[n] for n in others])


@pytest.mark.parametrize(
    ("kind", "overlaps"), [(Fragmented, False), (Local, True), (Fragmented, True)]
)
def test_law_8_own_weights_are_saved_and_begin_as_the_shared(tmp_path, kind, overlaps):
    made = lambda: kind(FEEDBACK, 2, "adam", local_steps=2, momentum=0.9, overlaps=overlaps)
    whole, first, second = (made() for _ in range(3))
    batches, taken = make_batches(), 2 // first.fragments
    whole.run(6, batches)
    first.run(3, batches)
    state = lambda each: [
        *each.variables,
        *each.outer.slots["momentum"],
        *each.averages.shadows,
        *each.classifier.state.values(),
        each.step,
        each.rounds,
    ]
    first.memory.save(str(tmp_path), 3, keep=1)
    for variable, value in zip(state(second), state(first), strict=True):
        variable.assign(value)
    assert second.memory.restore(str(tmp_path), 3) == ""
    second.run(3, batches.skip(3 * taken))
    for each in (state, lambda p: p.memory.variables.values()):
        assert_same_bits(*([v.numpy() for v in each(p)] for p in (whole, second)))
    second.memory.clear()
    for inner in second.inner:  # with overlap, so nothing of an earlier delta is left
        assert_same_bits(
            [v.numpy() for v in inner.kept], [v.numpy() for v in second.classifier.variables]
        )


def test_the_outer_step_is_nesterovs_with_the_mean_of_the_deltas():
    local = Local(FLOAT, 2, "gd", local_steps=2, rate=0.5, momentum=0.9)
    velocity = [np.zeros(v.shape) for v in local.variables]
    batches = iter(make_batches())
    for _ in range(2):
        before = [v.numpy() for v in local.variables]
        first = local.runner.one(batches).gradients  # the delta of node 0
        now = [v.numpy() for v in local.outer.slots["momentum"]]
        means = [new - 0.9 * old for new, old in zip(now, velocity, strict=True)]
        velocity = now
        steps = [0.5 * (d + 0.9 * v) for d, v in zip(means, velocity, strict=True)]
        assert_close(local.variables, [b - s for b, s in zip(before, steps, strict=True)])
        assert all(np.abs(d - g).max() > 1e-7 for d, g in zip(means, first, strict=True))


def test_law_8_rounds_in_one_call_are_rounds_one_by_one_and_observed():
    whole, single = (Local(FEEDBACK, 2, local_steps=3, momentum=0.9) for _ in range(2))
    whole.run(4)
    batches = iter(make_batches())
    for i in range(4):
        single.runner.one(batches) if i % 2 else single.runner.many(batches, 1)
    assert_same_bits(whole.values(), single.values())
    kept = lambda each: [v.numpy() for v in each.memory.variables.values()]
    assert_same_bits(kept(whole), kept(single))


def test_law_9_what_was_sent_and_kept_is_the_delta_and_the_decayed_memory():
    local = Local(FEEDBACK, 1, local_steps=2, feedback=0.5)
    batches = iter(make_batches())
    local.runner.many(batches, 2)
    name = max(n for n in local.memory.variables if n.startswith("memory/"))
    i = int(name.rpartition("/")[2])
    kept, before = local.memory.variables[name].numpy(), local.variables[i].numpy()
    delta = local.runner.one(batches).gradients[i].numpy()
    sent = local.outer.slots["momentum"][i].numpy()  # the mean of one node, without momentum
    left = local.memory.variables[name].numpy()
    assert np.any(kept) and np.any(delta) and np.any(sent)
    np.testing.assert_allclose(sent + left, delta + 0.5 * kept, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(local.variables[i], before - sent, rtol=1e-6, atol=1e-7)


def test_law_7_a_round_sends_what_a_step_sends():
    plain, local = Plain(FEEDBACK, 2), Local(FEEDBACK, 2, local_steps=4)
    plain.run(4)
    local.run(1)
    assert int(plain.exchange.steps) == 4 * int(local.exchange.steps) == 4


def test_a_round_without_all_its_batches_changes_nothing():
    local = Local(FEEDBACK, 2, local_steps=4)
    variables = [*local.variables, *local.memory.variables.values(), local.step, local.rounds]
    before = [v.numpy() for v in variables]
    with pytest.raises(tf.errors.OutOfRangeError):
        local.run(1, make_batches().take(3))
    assert_same_bits(before, [v.numpy() for v in variables])


def test_the_slots_of_inner_optimizers_are_each_nodes_own_and_saved_with_its_memory(tmp_path):
    first, second = (Local(FLOAT, 2, "rmsprop", local_steps=2) for _ in range(2))
    first.run(2)
    saved = first.memory.variables
    one, other = (saved[f"slots/{node}/mean_square/logits/kernel"].numpy() for node in (0, 1))
    assert not np.array_equal(one, other)
    first.memory.save(str(tmp_path), 4, keep=1)
    assert second.memory.restore(str(tmp_path), 4) == ""
    kept = lambda each: [v.numpy() for v in each.memory.variables.values()]
    assert_same_bits(kept(first), kept(second))
    second.memory.clear()
    np.testing.assert_array_equal(second.memory.variables["slots/1/mean_square/logits/kernel"], 1.0)
    np.testing.assert_array_equal(second.memory.variables["slots/1/momentum/logits/kernel"], 0.0)


def test_adam_that_begins_late_makes_no_larger_step_than_one_from_the_start():
    class Constant(Local):
        schedule = staticmethod(schedules.exponential(0.05, 1, 1.0))

    def moved(local):
        before = [v.numpy() for v in local.variables]
        local.run(1)
        changes = [v.numpy() - b for v, b in zip(local.variables, before, strict=True)]
        return max(np.abs(change).max() for change in changes)

    first, late = (Constant(FLOAT, 1, "adam", local_steps=1) for _ in range(2))
    late.step.assign(100_000)  # of the others; with their count it would be 3 times as long
    rate = moved(first)
    assert rate == pytest.approx(0.05, rel=1e-3)  # the length of Adam's first step
    assert moved(late) == pytest.approx(rate, rel=1e-3)
    assert [int(each.inner[0].updates) for each in (first, late)] == [1, 1]
    late.memory.clear()  # as in a worker that receives another step's state
    assert int(late.inner[0].updates) == 0


def test_moving_averages_of_a_stride_equal_as_many_updates_with_the_same_weights():
    weights = tf.Variable([1.0, 2.0])
    once, often = MovingAverages([weights], 0.9, stride=4), MovingAverages([weights], 0.9)
    weights.assign([3.0, -1.0])
    late = tf.constant(1000, tf.int64)
    once.update(late)
    for i in range(4):
        often.update(late + i)
    np.testing.assert_allclose(once.shadows[0], often.shadows[0], rtol=1e-6)


def test_moving_averages_of_a_long_stride_begin_with_finite_values():
    weights = tf.Variable([1.0])
    averages = MovingAverages([weights], 0.9999, stride=5000)
    weights.assign([3.0])
    averages.update(tf.constant(0, tf.int64))
    np.testing.assert_allclose(averages.shadows[0], [3.0], rtol=1e-3)


SIZES = {
    "lenet": [800, 32, 51200, 64, 3211264, 1024, 10240, 10],
    "equal": [7] * 10,
    "empty": [0, 0, 3, 0],
    "drawn": np.random.default_rng(0).integers(1, 1000, 50).tolist(),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_each_variable_is_in_one_fragment_and_none_is_empty(sizes, count):
    fragments = make_fragments(sizes, count)
    assert sorted(i for fragment in fragments for i in fragment) == list(range(len(sizes)))
    assert len(fragments) == count
    assert all(fragments)
    assert all(fragment == sorted(fragment) for fragment in fragments)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_fragment_has_no_more_values_than_another_and_a_variable_of_its_own(sizes, count):
    values = [[sizes[i] for i in fragment] for fragment in make_fragments(sizes, count)]
    least = min(map(sum, values))
    assert all(sum(each) <= least + min(each) for each in values)


def test_the_order_is_stated_largest_first():
    assert make_fragments([1, 5, 5, 2, 3], 2) == [[1, 4], [0, 2, 3]]


@pytest.mark.parametrize("count", [0, 5])
def test_law_10_more_fragments_than_variables_are_refused(count):
    text = f"{count} fragments of 4 trained variables; allowed are 1 to 4"
    with pytest.raises(ValueError, match=re.escape(text)):
        make_fragments([1, 2, 3, 4], count)
