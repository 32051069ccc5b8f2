"""A step that is made anew gets the batch that it had."""

import functools

import pytest
import tensorflow as tf

from terngrad.training.classifier import Losses
from terngrad.training.last_batch import LastBatch
from terngrad.training.reduction import Aggregate
from terngrad.training.runner import Runner
from terngrad.training.step import StepResult


class Training:
    """Steps that only note their batches, and a follower that ignores them; one step may fail."""

    saves_together = False

    def __init__(self):
        self.step = tf.Variable(0, dtype=tf.int64)
        self.fails_at = tf.Variable(-1, dtype=tf.int64)
        self.last_batch = LastBatch(self.step)
        self.seen = []
        make = functools.partial(Runner, codecs=(), take=self.last_batch.take)
        self.runner, self.follower = make(self), make(self.make_without_batch)

    def __call__(self, images, labels):
        with tf.control_dependencies([tf.numpy_function(self._note, [images, labels], [])]):
            return self.make_without_batch(images, labels)

    def make_without_batch(self, images, labels):
        del images, labels
        fails = tf.debugging.Assert(self.step != self.fails_at, [self.step])
        with tf.control_dependencies([fails]):
            self.step.assign_add(1)
        zero, no = tf.zeros([]), tf.constant(False)
        aggregate = Aggregate([], [], tf.zeros([0]), [], [], [])
        return StepResult(Losses(zero, zero), no, no, zero, [], aggregate)

    def fail(self, runner, batches, at):
        self.fails_at.assign(at)
        with pytest.raises(tf.errors.InvalidArgumentError):
            runner.many(batches, 10)
        self.fails_at.assign(-1)
        self.seen = []

    def _note(self, images, labels):
        self.seen.append((images.tolist(), int(labels)))


def batches_from(step, end=100):
    numbers = tf.data.Dataset.range(step, end)
    images = numbers.map(lambda i: tf.cast([i, i], tf.float32))
    return iter(tf.data.Dataset.zip(images, numbers))


def expected(steps):
    return [([float(step)] * 2, step) for step in steps]


@pytest.mark.parametrize("failing", ["runner", "follower"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("at", [0, 2])
def test_law_8_a_step_that_is_made_anew_gets_the_batch_that_it_had(failing, times, at):
    training, batches = Training(), batches_from(0)
    for _ in range(times):
        training.fail(getattr(training, failing), batches, at)
    training.runner.many(batches, 3)
    assert training.seen == expected(range(at, at + 3))


def test_law_8_after_a_step_back_all_batches_are_those_of_the_new_iterator():
    training = Training()
    training.fail(training.runner, batches_from(0), at=3)
    training.step.assign(2)
    training.last_batch.forget()
    training.runner.many(batches_from(2), 2)
    assert training.seen == expected([2, 3])


def test_law_8_no_batch_is_given_twice_where_the_input_fails():
    training, batches = Training(), batches_from(0, end=1)
    training.runner.many(batches, 1)
    assert training.last_batch.holds(0)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            training.runner.many(batches, 1)
        assert not training.last_batch.holds(1)
    assert training.seen == expected([0])
