"""Laws of exchanges that overlap with local steps: they run at once, and a delta counts later."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from terngrad.exchange.local import LocalExchange
from terngrad.testing.local_training import (
    FEEDBACK,
    FLOAT,
    RATE,
    Fragmented,
    Local,
    Plain,
    assert_close,
    assert_same_bits,
)
from terngrad.testing.nets import make_batches, make_model
from terngrad.training.classifier import Parameters
from terngrad.training.slots import SLOTS

_LONGEST_SECS = 60.0


def read(variables):
    return [v.numpy() for v in variables]


@pytest.mark.parametrize("kind", [Local, Fragmented])
@pytest.mark.parametrize("optimizer", SLOTS)
def test_the_weights_of_one_node_with_outer_rate_1_make_its_optimizers_steps(optimizer, kind):
    make = lambda: make_model(batch_norm=True)
    plain = Plain(FLOAT, 1, optimizer, make())
    local = kind(FLOAT, 1, optimizer, make(), local_steps=4, overlaps=True)
    plain.run(8)
    local.run(8 // 4 * local.fragments)
    assert int(local.step) == 8
    assert_close(read(local.inner[0].kept), read(plain.variables))


def delayed(steps, rounds, rate, momentum, nodes):
    """Returns shared and own weights of the delayed scheme, written out with NumPy."""
    plain = Plain(FLOAT, nodes, "gd")
    gradients = tf.function(
        lambda images, labels, weights: plain.classifier.gradients(
            images, labels, tf.zeros([2], tf.int32), Parameters(weights, [])
        )[0],
        autograph=False,
    )
    shared = read(plain.variables)
    own, velocity = [list(shared) for _ in range(nodes)], [np.zeros_like(v) for v in shared]
    batches = iter(make_batches())
    for k in range(rounds):
        deltas = [[s - w for s, w in zip(shared, each, strict=True)] for each in own]
        now = [list(each) for each in own]
        for i in range(steps):
            images, labels = next(batches)
            for node in range(nodes):
                part = slice(len(images) // nodes * node, len(images) // nodes * (node + 1))
                found = gradients(images[part], labels[part], now[node])
                inner_rate = float(RATE(tf.constant(k * steps + i, tf.int64)))
                pairs = zip(now[node], found, strict=True)
                now[node] = [w - inner_rate * g.numpy() for w, g in pairs]
        means = [np.mean(each, axis=0) for each in zip(*deltas, strict=True)]
        velocity = [momentum * v + m for v, m in zip(velocity, means, strict=True)]
        changes = [rate * (m + momentum * v) for m, v in zip(means, velocity, strict=True)]
        shared = [s - c for s, c in zip(shared, changes, strict=True)]
        own = [
            [s + (new - old) for s, new, old in zip(shared, *each, strict=True)]
            for each in zip(now, own, strict=True)
        ]
    return shared, own


def test_the_result_is_that_of_the_scheme_written_out():
    local = Local(FLOAT, 2, "gd", local_steps=3, rate=0.5, momentum=0.9, overlaps=True)
    local.run(4)
    shared, own = delayed(3, 4, 0.5, 0.9, 2)
    assert_close(read(local.variables), shared)
    for inner, expected in zip(local.inner, own, strict=True):
        assert_close(read(inner.kept), expected)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(*own, strict=True))


def test_the_first_exchange_changes_nothing_and_the_next_is_of_the_first_round():
    local = Local(FLOAT, 2, local_steps=2, overlaps=True)
    batches, begin = iter(make_batches()), read(local.variables)
    local.run(1, batches)
    assert_same_bits(read(local.variables), begin)
    own = [read(inner.kept) for inner in local.inner]
    local.run(1, batches)
    assert_close(read(local.variables), [np.mean(each, axis=0) for each in zip(*own, strict=True)])


class Waiting(LocalExchange):
    """Deltas are exchanged when the last batch of the round is taken, which waits for that."""

    begun, taken = threading.Event(), threading.Event()

    def mean(self, values, name):
        """See base class."""
        if name in ("losses", "moving statistics"):
            return super().mean(values, name)

        def wait(first):
            self.begun.set()
            return first if self.taken.wait(_LONGEST_SECS) else np.float32(np.nan) * first

        first = tf.numpy_function(wait, [values[0][0]], tf.float32, stateful=False)
        first = tf.ensure_shape(first, values[0][0].shape)
        return super().mean([[first, *values[0][1:]], *values[1:]], name)


def test_inner_steps_and_an_exchange_run_at_the_same_time():
    class WithWaiting(Local):
        make_exchange = Waiting

    local = WithWaiting(FLOAT, 2, local_steps=3, overlaps=True)
    waited = []

    def last(images, labels):
        waited.append(Waiting.begun.wait(_LONGEST_SECS))
        Waiting.taken.set()
        return images, labels

    def mark(i, batch):
        shapes = [each.shape for each in batch]
        kinds = [each.dtype for each in batch]
        wait = lambda: tf.numpy_function(last, batch, kinds, stateful=False)
        found = tf.cond(i == 2, wait, lambda: list(batch))
        return [tf.ensure_shape(v, shape) for v, shape in zip(found, shapes, strict=True)]

    local.run(1, make_batches().enumerate().map(mark))
    assert waited == [True]
    assert all(np.isfinite(v).all() for v in local.values())


def test_law_9_what_was_sent_and_kept_is_the_delta_of_the_round_before():
    local = Local(FEEDBACK, 1, local_steps=2, feedback=0.5, overlaps=True)
    batches = iter(make_batches())
    local.runner.many(batches, 3)
    name = max(n for n in local.memory.variables if n.startswith("memory/"))
    i = int(name.rpartition("/")[2])
    kept = local.memory.variables[name].numpy()
    delta = local.variables[i].numpy() - local.inner[0].kept[i].numpy()
    observed = local.runner.one(batches).gradients[i].numpy()
    np.testing.assert_array_equal(observed, delta)
    sent = local.outer.slots["momentum"][i].numpy()  # the mean of one node, without momentum
    assert np.any(kept) and np.any(delta)
    left = local.memory.variables[name].numpy()
    np.testing.assert_allclose(sent + left, delta + 0.5 * kept, rtol=1e-5, atol=1e-7)


def test_a_round_without_all_its_batches_changes_nothing():
    local = Local(FEEDBACK, 2, local_steps=4, overlaps=True)
    local.run(2)
    variables = [*local.variables, *local.memory.variables.values(), local.step, local.rounds]
    before = read(variables)
    with pytest.raises(tf.errors.OutOfRangeError):
        local.run(1, make_batches().take(3))
    assert_same_bits(before, read(variables))
