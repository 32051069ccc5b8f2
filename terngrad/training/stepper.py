"""How a loop makes steps: the interface, and steps that all workers make together."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.cluster.progress import ProcessProgress
from terngrad.codecs.codec import Codec
from terngrad.layout import Layout
from terngrad.training.errors import NotFiniteError, not_finite
from terngrad.training.runner import Outcome, Runner
from terngrad.training.summaries import SummaryWriter
from terngrad.training.timing import Progress, make_progress


class Shown(NamedTuple):
    """The first local node's gradients in a step, and their shares of zeros by variable."""

    gradients: Sequence[tf.Tensor]
    zeros: Mapping[int, tf.Tensor]


class Stepper(abc.ABC):
    """Makes steps, several for each call of the loop.

    Attributes:
      step: steps of all workers since the run began, by which checkpoints are named.
      stride: steps that are made together: each call makes a multiple of it.
      own_step: steps that this worker reports: `step` if all workers make steps together, else the
        worker's own.
      is_over: whether no step is left: the workers were asked to stop, or have made all.
      wants_save: whether all processes must save after the last step, see `request_save`.
      is_observable: whether `observe` returns computed gradients.
      codecs: codecs of the next step's gradients.
    """

    step: int
    stride: int = 1
    own_step: int
    is_over: bool
    wants_save: bool = False
    is_observable: bool
    codecs: Sequence[Codec]

    def compile(self) -> None:
        """Compiles the steps, so that the first is as quick as the next."""
        return

    @abc.abstractmethod
    def select(self) -> int:
        """Chooses the kind of the next steps; returns how many of them a call may make."""

    @abc.abstractmethod
    def make(self, count: int) -> None:
        """Makes up to `count` steps, a multiple of `stride`; fewer after a request to stop.

        Raises:
          NotFiniteError: a loss or a gradient is not finite.
          tf.errors.OpError: a step failed; see `recover`.
        """

    @abc.abstractmethod
    def observe(self) -> Shown:
        """Makes `stride` steps and returns their gradients; for the errors see `make`."""

    @abc.abstractmethod
    def progress(self, seconds: float) -> Progress:
        """Returns the report of the last step; `seconds` is the mean duration of a step."""

    @abc.abstractmethod
    def request_stop(self) -> bool:
        """Requests the end of this process; returns whether one more step must tell the others."""

    def request_save(self) -> bool:
        """Requests a checkpoint; returns whether this process may save at once.

        Otherwise all processes save together after one of the next steps.
        """
        return True

    def recover(self) -> bool:
        """Recovers from a failed step; returns whether the training continues.

        It may continue from another step.
        """
        return False

    def summarize(self, writer: SummaryWriter) -> None:
        """Writes the summaries that only this kind of training has."""
        del writer


@dataclasses.dataclass
class SynchronousStepper(Stepper):
    """Runs compiled steps.

    Attributes:
      runner_at: given the number of steps done, returns the next step's runner, and the step up to
        which it applies.
      batches: iterator of (images, labels).
      batch_size: images in a batch.
      layout: layout of the gradients.
      step: steps done.
      stride: steps that a step of the runner counts for: the inner steps of a `LocalStep`.
      process_progress: shows other processes how far this one is.
      regain: called after a failed step; returns the step from which the training continues and its
        batches, or None if it cannot continue. The batches are None if it continues with the same.
      is_stopped: whether the others had been asked to stop when this process got their state.
      may_leave: whether a request to stop is for this process alone.
    """

    runner_at: Callable[[int], tuple[Runner, int]]
    batches: Iterator
    batch_size: int
    layout: Layout
    step: int = 0
    stride: int = 1
    process_progress: ProcessProgress = dataclasses.field(default_factory=ProcessProgress)
    regain: Callable[[], tuple[int, Iterator | None] | None] = lambda: None
    is_stopped: Callable[[], bool] = lambda: False
    may_leave: bool = False
    is_over: bool = dataclasses.field(default=False, init=False)
    wants_save: bool = dataclasses.field(default=False, init=False)
    _runner: Runner | None = dataclasses.field(default=None, init=False)
    _last: Outcome | None = dataclasses.field(default=None, init=False)
    _called: set[Runner] = dataclasses.field(default_factory=set, init=False)

    @property
    def own_step(self) -> int:
        """See base class."""
        return self.step

    @property
    def is_observable(self) -> bool:
        """See base class."""
        return self._runner.is_observable

    @property
    def codecs(self) -> Sequence[Codec]:
        """See base class."""
        return self._runner.codecs

    def compile(self) -> None:
        """See base class."""
        self.is_over = self.is_stopped()
        runner, _ = self.runner_at(self.step)
        runner.compile(self.batches)

    def select(self) -> int:
        """See base class."""
        self._runner, until = self.runner_at(self.step)
        return until - self.step

    def make(self, count: int) -> None:
        """See base class."""
        with self._reporting_steps():
            outcome = self._runner.many(self.batches, count // self.stride)
            self.step += int(outcome.done) * self.stride
        self._take(outcome)

    def observe(self) -> Shown:
        """See base class."""
        with self._reporting_steps():
            observation = self._runner.one(self.batches)
            self.step += self.stride
        self._take(observation.outcome)
        return Shown(observation.gradients, observation.zeros)

    def progress(self, seconds: float) -> Progress:
        """See base class."""
        last = self._last
        return make_progress(self.step, last.losses, last.learning_rate, seconds, self.batch_size)

    def request_stop(self) -> bool:
        """See base class."""
        if self.may_leave:
            return False
        self._runner.request_stop()
        return True

    def request_save(self) -> bool:
        """See base class."""
        if not self._runner.saves_together:
            return True
        self._runner.request_save()  # clocks differ, but all must save after the same step
        return False

    def recover(self) -> bool:
        """See base class."""
        if (found := self.regain()) is None:
            return False
        self.step, batches = found
        self.batches = self.batches if batches is None else batches
        self.is_over = self.is_stopped()
        return True

    def _reporting_steps(self) -> contextlib.AbstractContextManager:
        if self._runner in self._called:
            return self.process_progress.steps(self.step)
        self._called.add(self._runner)  # the first call takes long: it compiles, fills the pipeline
        return contextlib.nullcontext()

    def _take(self, outcome: Outcome) -> None:
        among = sorted(i for codec in self._runner.codecs for i in codec.variables)
        floats = [self.layout.names[among[i]] for i in np.flatnonzero(outcome.broken)]
        if bad := not_finite(outcome.losses, outcome.scales, self.layout, set(among), floats):
            raise NotFiniteError(f"step {self.step}: {', '.join(bad)}")
        self.is_over = bool(outcome.stop)
        self.wants_save = bool(outcome.save)
        self._last = outcome
