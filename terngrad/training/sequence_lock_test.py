"""Copies of the state while a step waits: whole ones, or none."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.nets import make_batches, make_model
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.memory import Memory
from terngrad.training.optimizers import make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runner import Runner
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.step import TrainStep

FEEDBACK = Policy(codec="5-level-feedback", float_layers=("logits",))

_OTHER_PARTS_SECS, _COPIES = 2.0, 50


class StalledExchange(LocalExchange):
    """Waits in the chosen parts of a step: for another process, or amid the updates."""

    stalls = ()

    def __init__(self, nodes, kernels):
        super().__init__(nodes, kernels)
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.parts = set()  # those that the second step has come to

    def _join_codes(self, local, name, max_code):
        return self._after("codes", super()._join_codes(local, name, max_code))

    def mean(self, values, name):
        first, *others = super().mean(values, name)
        return [self._after("losses" if name == "losses" else "floats", first), *others]

    def count_step(self):
        self.steps.assign(self._after("updates", self.steps.read_value()) + 1)

    def _after(self, kind, result):
        def wait(value):
            if self.stalls:
                self.parts.add(kind)
            if kind in self.stalls:
                self.reached.set()
                assert self.go_on.wait(HANG_SECS)
            return value

        return tf.ensure_shape(
            tf.numpy_function(wait, [result], result.dtype, stateful=False), result.shape
        )


class Stalled:
    """A training whose second step stalls, in a thread."""

    def __init__(self, *stalls):
        kernels, classifier = ReferenceKernels(), Classifier(make_model())
        variables = classifier.variables
        layout = make_layout(classifier.names, [v.shape for v in variables], FEEDBACK)
        codecs = make_codecs(layout, kernels)
        self.exchange, self.sequence = StalledExchange(2, kernels), SequenceLock()
        memory, averages = Memory(codecs, 0, 2), MovingAverages(variables, 0.99)
        optimizer = make_optimizer("momentum", variables, 0.9, kernels)
        step = tf.Variable(0, dtype=tf.int64)
        reduction = Reduction(codecs, self.exchange, step, 3, memory=memory, sequence=self.sequence)
        made = TrainStep(classifier, reduction, optimizer, schedules.fixed(0.05), averages)
        self.runner, batches = Runner(made, codecs, sequence=self.sequence), iter(make_batches())
        held = [*variables, *averages.shadows, *optimizer.slots["momentum"], step]
        self.variables = dict(enumerate([*held, *memory.variables.values()]))
        self.runner.many(batches, 1)
        self.before = self.values()
        self.exchange.stalls = stalls
        self._thread = threading.Thread(target=self.runner.many, args=(batches, 2))

    def values(self):
        return {name: np.array(v.numpy()) for name, v in self.variables.items()}

    def __enter__(self):
        self._thread.start()
        assert self.exchange.reached.wait(HANG_SECS)
        return self

    def __exit__(self, *exception):
        self.exchange.go_on.set()
        self.exchange.stalls = ()
        self._thread.join(HANG_SECS)
        assert not self._thread.is_alive()


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def copy_of(training):
    copied = training.sequence.copy(training.variables)
    return copied and {name: variable.numpy() for name, variable in copied.items()}


@pytest.mark.parametrize("parts", [("codes",), ("floats",), ("losses",), ("codes", "floats")])
def test_law_8_what_is_copied_while_a_step_waits_is_the_state_before_it(parts):
    with Stalled(*parts) as training:
        deadline = time.monotonic() + _OTHER_PARTS_SECS
        while training.exchange.parts < {"codes", "floats", "losses"} and (
            time.monotonic() < deadline  # those that stall may hold all threads
        ):
            time.sleep(0.01)
        for _ in range(_COPIES):  # updates with the other parts' results would begin meanwhile
            assert_equal(copy_of(training), training.before)
    assert_equal(copy_of(training), training.values())
    assert not np.array_equal(training.values()[0], training.before[0])


def test_nothing_is_copied_amid_updates():
    with Stalled("updates") as training:
        assert copy_of(training) is None
    assert_equal(copy_of(training), training.values())


def test_nothing_is_copied_that_something_else_changes_meanwhile():
    sequence, versions = SequenceLock(), iter(range(2))
    assert sequence.copy({"x": tf.Variable(1.0)}, lambda: next(versions)) is None
