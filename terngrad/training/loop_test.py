"""What ends a training loop, with a fake runner."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from terngrad.layout import Policy, make_layout
from terngrad.training.classifier import Losses
from terngrad.training.errors import DivergedError
from terngrad.training.loop import Loop
from terngrad.training.runner import Observation, Outcome
from terngrad.training.signals import StopRequest
from terngrad.training.stepper import SynchronousStepper
from terngrad.training.timing import Cadence

LAYOUT = make_layout(["conv/kernel", "fc/kernel"], [(3, 3), (4, 5)], Policy(grad_bits=1))


class FakeRunner:
    """Makes steps that cost nothing; from step `bad_from` on the outcome is `bad`."""

    codecs = (types.SimpleNamespace(variables=range(len(LAYOUT.names))),)
    excluded_runner = None
    saves_together = False

    def __init__(self, bad=None, bad_from=0, is_observable=True):
        self.is_observable = is_observable
        self.step, self.stopping, self.saving = 0, False, False
        self._bad, self._bad_from = bad or {}, bad_from

    def compile(self, batches):
        del batches

    def request_stop(self):
        self.stopping = True

    def request_save(self):
        self.saving = True

    def many(self, batches, count):
        del batches
        done = min(count, 1) if self.stopping else count
        self.step += done
        scales = np.ones(2, np.float32)
        good = {"losses": Losses(tf.constant(1.0), tf.constant(0.0)), "scales": tf.constant(scales)}
        good["broken"] = tf.constant([False, False])
        values = good | (self._bad if self.step >= self._bad_from else {})
        stop = tf.constant(self.stopping)
        rate = tf.constant(0.1)
        save, self.saving = tf.constant(self.saving), False
        losses, scales, broken = (values[name] for name in ("losses", "scales", "broken"))
        return Outcome(tf.constant(done), losses, stop, rate, scales, save, broken)

    def one(self, batches):
        return Observation(self.many(batches, 1), [], {})


class FakeWriter:
    """Notes the steps whose gradients it gets."""

    def __init__(self):
        self.observed = []

    def gradients(self, gradients, zeros, step):
        self.observed.append(step)

    def progress(self, progress):
        del progress

    def traffic(self, codecs, step):
        del codecs, step

    def flush(self):
        pass


def loop_of(runner, saved, max_steps=100, step=0):
    return Loop(
        stepper=SynchronousStepper(
            runner_at=lambda step: (runner, 1 << 60),
            batches=iter(()),
            batch_size=4,
            layout=LAYOUT,
            step=step,
        ),
        cadence=Cadence(max_steps=max_steps, log_every=10, save_every=25),
        report=lambda progress: None,
        save=lambda step: saved.append(step) or f"model.ckpt-{step}",
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"scales": tf.constant([1.0, np.inf])},  # in the order of the buckets: the last one first
        {"broken": tf.constant([True, False])},  # in that of the variables
    ],
    ids=["coded", "float"],
)
def test_law_10_the_variable_of_a_gradient_that_is_not_finite_is_named(bad):
    saved = []
    text = (
        r"step 40: the gradient of conv/kernel is not finite; last good checkpoint: model.ckpt-25\."
    )
    with pytest.raises(DivergedError, match=text):
        loop_of(FakeRunner(bad, bad_from=40), saved).run(None, StopRequest())
    assert saved == [25]


def test_the_callback_of_the_first_step_comes_before_its_report():
    found = []
    loop = loop_of(FakeRunner(), [], max_steps=10)
    loop.first_step_made = lambda: found.append("made")
    loop.report = lambda progress: found.append("reported")
    loop.run(None, StopRequest())
    assert found[0] == "made" and "reported" in found


def test_law_10_a_loss_that_is_not_finite_is_named():
    bad = {"losses": Losses(tf.constant(np.nan), tf.constant(0.5))}
    with pytest.raises(DivergedError, match=r"entropy_loss is nan; .* none was written yet"):
        loop_of(FakeRunner(bad), []).run(None, StopRequest())


def test_a_request_to_stop_ends_after_one_more_step_with_a_checkpoint():
    runner, saved, stop = FakeRunner(), [], StopRequest()
    stop.signal = 15
    checkpoint, stopped = loop_of(runner, saved).run(None, stop)
    assert (runner.step, saved, checkpoint, stopped) == (1, [1], "model.ckpt-1", True)


def test_a_request_to_stop_compiles_nothing_more():
    runner, stop = FakeRunner(), StopRequest()
    stop.signal = 15
    loop = loop_of(runner, [])
    loop.writer = FakeWriter()
    loop.run(None, stop)
    assert (loop.writer.observed, runner.step) == ([], 1)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_failed_step_continues_from_the_state_it_is_given_unless_stopped(stopped):
    class FailingOnce(FakeRunner):
        failed = False

        def many(self, batches, count):
            if self.step == 30 and not self.failed:
                self.failed = True
                raise tf.errors.UnavailableError(None, None, "connection lost")
            return super().many(batches, count)

    runner, saved = FailingOnce(), []
    loop = loop_of(runner, saved)
    loop.stepper.regain = lambda: (70, iter(()))
    loop.stepper.is_stopped = lambda: stopped and runner.failed
    checkpoint, ended = loop.run(None, StopRequest())
    assert (ended, checkpoint) == (stopped, "model.ckpt-70" if stopped else "model.ckpt-100")
    assert saved == ([25, 70] if stopped else [25, 75, 100])


def test_a_process_that_starts_with_the_state_of_a_stopped_run_makes_no_step():
    runner, saved = FakeRunner(), []
    loop = loop_of(runner, saved, step=40)
    loop.stepper.is_stopped = lambda: True
    assert loop.run("model.ckpt-40", StopRequest()) == ("model.ckpt-40", True)
    assert (runner.step, saved) == (0, [])


def test_others_see_how_far_it_is_in_steps_but_not_while_it_compiles_or_saves():
    runner, saved, seen = FakeRunner(), [], []
    loop = loop_of(runner, saved, max_steps=60)
    many, save = runner.many, loop.save
    shown = lambda: loop.stepper.process_progress.batches
    runner.many = lambda *arguments: seen.append((runner.step, shown())) or many(*arguments)
    loop.save = lambda step: seen.append(("saved", shown())) or save(step)
    loop.run(None, StopRequest())
    assert seen[0] == (0, None)  # the first call waits for the first of all batches
    assert seen.count(("saved", None)) == 3
    assert all(batches == step for step, batches in seen[1:] if step != "saved")
    assert shown() is None


def test_checkpoints_are_written_at_their_steps_and_at_the_end():
    saved = []
    checkpoint, stopped = loop_of(FakeRunner(), saved, max_steps=60).run(None, StopRequest())
    assert (saved, checkpoint, stopped) == ([25, 50, 60], "model.ckpt-60", False)


def test_gradients_are_shown_only_by_an_observable_runner():
    alone, excluded = FakeRunner(), FakeRunner(is_observable=False)
    for runner, observed in [(alone, list(range(1, 61))), (excluded, [])]:
        loop = loop_of(runner, [], max_steps=60)
        loop.writer = FakeWriter()
        loop.cadence = dataclasses.replace(loop.cadence, summary_secs=0.0)
        loop.run(None, StopRequest())
        assert (loop.writer.observed, runner.step) == (observed, 60)


@pytest.mark.parametrize(("max_steps", "observed"), [(60, [1, 60]), (2, [1, 2]), (1, [1])])
def test_a_short_run_shows_the_gradients_of_its_first_and_last_step(max_steps, observed):
    loop = loop_of(FakeRunner(), [], max_steps=max_steps)
    loop.writer = FakeWriter()
    loop.run(None, StopRequest())
    assert loop.writer.observed == observed


@pytest.mark.parametrize("together", [False, True])
def test_a_save_by_time_waits_for_a_step_where_all_save_together(together):
    runner, saved = FakeRunner(), []
    runner.saves_together = together
    loop = loop_of(runner, saved, max_steps=40)
    loop.cadence = dataclasses.replace(loop.cadence, save_every=0, save_secs=1e-9)
    loop.run(None, StopRequest())
    assert saved == ([10, 30, 40] if together else [1, 10, 20, 30, 40])


@pytest.mark.parametrize("together", [False, True])
def test_a_save_that_was_interrupted_is_made_again_after_the_first_steps(together):
    runner, saved = FakeRunner(), []
    runner.saves_together = together
    loop = loop_of(runner, saved, max_steps=40)
    loop.saves_soon, loop.cadence = True, dataclasses.replace(loop.cadence, save_every=0)
    loop.run("model.ckpt-0", StopRequest())
    assert saved == ([10, 40] if together else [1, 40])


@pytest.mark.parametrize(
    ("stride", "first", "reported", "saved"),
    [
        (1, 0, [10, 20, 30, 40, 50, 60], [25, 50, 60]),
        (4, 0, [12, 20, 32, 40, 52, 60], [28, 52, 60]),
        (16, 8, [24, 40, 56, 72], [40, 56, 72]),  # begun with another stride
    ],
)
def test_a_loop_acts_at_the_first_end_of_a_stride_and_shows_the_first_and_the_last(
    stride, first, reported, saved
):
    found, reports = [], []
    loop = loop_of(FakeRunner(), found, max_steps=60, step=first)
    loop.stepper.stride, loop.writer = stride, FakeWriter()
    loop.report = lambda progress: reports.append(progress.step)
    loop.run(None, StopRequest())
    assert (reports, found) == (reported, saved)
    assert loop.writer.observed == [first + stride, reported[-1]]
