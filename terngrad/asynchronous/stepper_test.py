"""The training loop with the steps of an asynchronous worker and fake ps."""

import itertools
import signal

import numpy as np
import pytest
import tensorflow as tf

from terngrad import outputs
from terngrad.asynchronous.client import Pulled
from terngrad.asynchronous.gradient import Computed, Pushable, check_codecs
from terngrad.asynchronous.row import make_shards
from terngrad.asynchronous.stepper import AsynchronousStepper
from terngrad.codecs.factory import make_codecs
from terngrad.layout import Policy, make_layout
from terngrad.ops.packing import ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.training import schedules
from terngrad.training.classifier import Losses
from terngrad.training.errors import DivergedError
from terngrad.training.loop import Loop
from terngrad.training.signals import StopRequest
from terngrad.training.timing import Cadence

LAYOUT = make_layout(["fc/kernel", "fc/bias"], [(8, 8), (8,)], Policy())
SHARDS = make_shards(LAYOUT, 1, 1, 0)
PACKING = ReferencePacking()


class FakePs:
    """Counts updates of this worker and of two equally fast ones, up to `max_steps`."""

    def __init__(self, max_steps=100):
        self.version, self.pushes, self._max_steps = 0, 0, max_steps

    def pulled(self, **flags):
        ends = {"finished": self.version >= self._max_steps, "stopped": False, "saved": False}
        return Pulled(self.version, (self.version,), (), np.zeros(0), **ends | flags)

    def push(self, contents, versions):
        assert versions == (self.version,)
        self.pushes += 1
        self.version = min(self._max_steps, self.version + 3)
        return self.pulled()

    def take_staleness(self):
        return [2]


class FakeWriter:
    """Notes the steps of its summaries."""

    def __init__(self):
        self.observed, self.staleness_at = [], []

    def gradients(self, gradients, zeros, step):
        self.observed.append(step)

    def traffic(self, codecs, step):
        del codecs, step

    def progress(self, progress):
        del progress

    def staleness(self, values, step):
        assert values == [2]
        self.staleness_at.append(step)

    def flush(self):
        pass


def computed(loss=1.0, value=0.0):
    floats = np.zeros(LAYOUT.size + 24, np.float32)
    floats[3] = value
    nothing = tf.zeros([0])
    words = tf.zeros([0, 2], tf.uint32)
    return Computed(
        losses=Losses(tf.constant(loss), tf.constant(0.0)),
        pushable=Pushable(nothing, nothing, words, tf.constant(floats), nothing),
        gradients=[],
        encoded=[],
    )


def loop_of(ps, saved, *, outcome=None, **cadence):
    stepper = AsynchronousStepper(
        client=ps,
        compute=lambda *batch: outcome or computed(),
        layout=LAYOUT,
        shards=SHARDS,
        packing=PACKING,
        codecs=(),
        batches=itertools.repeat((None, None)),
        batch_size=4,
        schedule=schedules.fixed(0.1),
        pulled=ps.pulled(),
    )
    reports = []
    loop = Loop(
        stepper=stepper,
        cadence=Cadence(**{"max_steps": 100, "log_every": 10} | cadence),
        report=reports.append,
        save=lambda step: saved.append(step) or f"model.ckpt-{step}",
        saves_last=False,
    )
    return loop, reports


def test_checkpoints_count_the_steps_of_the_run_and_reports_those_of_the_worker():
    ps, saved = FakePs(), []
    loop, reports = loop_of(ps, saved, save_every=25)
    checkpoint, _ = loop.run(None, StopRequest())
    assert ps.pushes == 34  # of 100 updates, the others made the rest
    assert [report.step for report in reports] == [30, 60, 90]
    assert saved == [27, 51, 75, 100]  # the last one by its number, not because it is the last
    assert checkpoint == "model.ckpt-100"


def test_who_calls_the_loop_saves_last():
    saved = []
    loop, _ = loop_of(FakePs(max_steps=20), saved)
    assert loop.run(None, StopRequest()) == (None, True)
    assert saved == []


def test_a_worker_that_is_asked_to_stop_makes_no_other_step():
    ps, stop = FakePs(), StopRequest()
    loop, _ = loop_of(ps, [])
    stop.signal = 15
    assert loop.run("model.ckpt-0", stop) == ("model.ckpt-0", False)
    assert ps.pushes == 0


def test_a_worker_ends_when_the_chief_has_stopped_the_run():
    ps = FakePs()
    loop, _ = loop_of(ps, [])
    ps.pulled = lambda: FakePs.pulled(ps, stopped=ps.version >= 6)
    loop.run(None, StopRequest())
    assert (ps.pushes, loop.stepper.step) == (2, 6)


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (computed(loss=np.nan), "entropy_loss is nan"),
        (computed(value=np.inf), r"the gradient of fc/\w+ is not finite"),
    ],
)
def test_law_10_what_is_not_finite_is_named_and_not_pushed(outcome, what):
    ps = FakePs()
    loop, _ = loop_of(ps, [], outcome=outcome)
    text = rf"^step 0: {what}; its gradient was not pushed; last good checkpoint: model.ckpt-0\.$"
    with pytest.raises(DivergedError, match=text):
        loop.run("model.ckpt-0", StopRequest())
    assert ps.pushes == 0


def test_the_first_step_is_observed_and_staleness_is_written_with_each_report():
    ps = FakePs(max_steps=50)
    loop, _ = loop_of(ps, [], summary_secs=1000.0)
    loop.writer = FakeWriter()
    loop.run(None, StopRequest())
    assert loop.writer.observed == [3]
    assert loop.writer.staleness_at == [30, 50]
    assert loop.stepper.own_step == 17


def test_a_pipe_that_nobody_reads_ends_the_worker(monkeypatch):
    ps, stop = FakePs(), StopRequest()
    loop, _ = loop_of(ps, [])
    loop.report = lambda progress: monkeypatch.setattr(outputs, "_lost_by", [signal.SIGPIPE])
    loop.run(None, stop)
    assert (ps.pushes, stop.signal.name) == (10, "SIGPIPE")


def test_law_10_a_codec_whose_means_are_no_decoded_sums_is_named():
    for name in ("OwnScaleTernaryCodec", "UnpackedTernaryCodec", "ternary"):
        codec = f"terngrad.codecs.examples:{name}" if name != "ternary" else name
        layout = make_layout(["fc/kernel"], [(8, 8)], Policy(codec=codec))
        codecs = make_codecs(layout, ReferenceKernels())
        if name == "ternary":
            check_codecs(codecs, codec)
            continue
        with pytest.raises(ValueError, match=f"codec is {codec}; .* inherit deliver and decode"):
            check_codecs(codecs, codec)
