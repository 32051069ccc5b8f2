"""Steps that a worker makes without waiting for the others: pull, compute, push."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import tensorflow as tf

from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.gradient import Computed, GradientStep, broken_floats, parts_by_ps
from terngrad.asynchronous.row import Shard
from terngrad.codecs.codec import Codec
from terngrad.layout import Layout
from terngrad.ops.packing import Packing
from terngrad.training.classifier import Losses
from terngrad.training.errors import NotFiniteError, not_finite
from terngrad.training.schedules import Schedule
from terngrad.training.stepper import Shown, Stepper
from terngrad.training.summaries import SummaryWriter
from terngrad.training.timing import Progress, make_progress


@dataclasses.dataclass
class AsynchronousStepper(Stepper):
    """Makes the steps of one worker until the run has ended or this worker must stop.

    Attributes:
      client: calls the ps.
      compute: computes gradients.
      layout: layout of the gradients.
      shards: shard of each ps.
      packing: packs codes.
      codecs: codecs of the layout.
      batches: iterator of (images, labels).
      batch_size: images in a batch.
      schedule: the ps' learning rate, for the log.
      pulled: parameters for the next gradient.
      own_step: steps that this worker has made.
    """

    client: Client
    compute: GradientStep
    layout: Layout
    shards: Sequence[Shard]
    packing: Packing
    codecs: Sequence[Codec]
    batches: Iterator
    batch_size: int
    schedule: Schedule
    pulled: Pulled
    own_step: int = 0
    is_observable: bool = dataclasses.field(default=True, init=False)
    _losses: Losses | None = dataclasses.field(default=None, init=False)

    @property
    def step(self) -> int:
        """See base class."""
        return self.pulled.version

    @property
    def is_over(self) -> bool:
        """See base class."""
        return self.pulled.finished or self.pulled.stopped

    def select(self) -> int:
        """See base class; each step needs newly pulled parameters."""
        return 1

    def make(self, count: int) -> None:
        """See base class; makes one step."""
        del count
        self._step()

    def observe(self) -> Shown:
        """See base class."""
        computed = self._step()
        zeros = {}
        for codec, encoded in zip(self.codecs, computed.encoded, strict=True):
            zeros |= codec.share_of_zeros(encoded)
        return Shown(computed.gradients, zeros)

    def progress(self, seconds: float) -> Progress:
        """See base class."""
        rate = self.schedule(tf.constant(max(0, self.step - 1), tf.int64))
        return make_progress(self.step, self._losses, rate, seconds, self.batch_size)

    def request_stop(self) -> bool:
        """See base class; the others continue, so no step must inform them."""
        return False

    def summarize(self, writer: SummaryWriter) -> None:
        """See base class."""
        writer.staleness(self.client.take_staleness(), self.step)

    def _step(self) -> Computed:
        pulled = self.pulled
        images, labels = next(self.batches)
        computed = self.compute(
            images, labels, pulled.version, pulled.parameters, pulled.statistics
        )
        self._check(computed)
        parts = parts_by_ps(computed.pushable, self.shards, self.packing)
        self.pulled = self.client.push(parts, pulled.versions)
        self.own_step += 1
        self._losses = computed.losses
        return computed

    def _check(self, computed: Computed) -> None:
        pushable, layout = computed.pushable, self.layout
        floats = broken_floats(pushable, layout)
        if bad := not_finite(computed.losses, pushable.scales, layout, floats=floats):
            raise NotFiniteError(f"step {self.step}: {', '.join(bad)}; its gradient was not pushed")
