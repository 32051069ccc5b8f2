"""What makes the steps of a training: all workers together, or each on its own."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.training.progress import Progress
from terngrad.training.summaries import SummaryWriter


class Shown(NamedTuple):
    """What one step shows: its first local node's gradients, and shares of zeros by variable."""

    gradients: Sequence[tf.Tensor]
    zeros: Mapping[int, tf.Tensor]


class Stepper(abc.ABC):
    """Makes steps; the loop asks it for some at a time.

    Attributes:
      step: steps of the run, those of all its workers, since it began. Checkpoints are of them.
      own_step: steps that this worker reports: the same ones where all workers make steps
        together, else the worker's own.
      is_over: no step is left to make: the workers were asked to stop, or have made all.
      wants_save: all processes are to save after the last step, see `request_save`.
      is_observable: whether `observe` shows gradients that were computed.
      codecs: with which the next step exchanges its gradients.
    """

    step: int
    own_step: int
    is_over: bool
    wants_save: bool = False
    is_observable: bool
    codecs: Sequence[Codec]

    def compile(self) -> None:
        """Gets ready, so that the first step is as quick as the next."""
        return

    @abc.abstractmethod
    def select(self) -> int:
        """Chooses the kind of the next steps; returns how many of it a call may make."""

    @abc.abstractmethod
    def make(self, count: int) -> None:
        """Makes up to `count` steps; fewer once the training is to stop.

        Raises:
          NotFiniteError: names the step, and what of it is not finite.
          tf.errors.OpError: a step failed; see `recover`.
        """

    @abc.abstractmethod
    def observe(self) -> Shown:
        """Makes one step and shows what it exchanged; for the errors see `make`."""

    @abc.abstractmethod
    def progress(self, seconds: float) -> Progress:
        """What is reported of the last step; `seconds` is the mean duration of a step."""

    @abc.abstractmethod
    def request_stop(self) -> bool:
        """This process was asked to stop; returns whether one more step tells the others so."""

    def request_save(self) -> bool:
        """It is time to save, by this process' clock; returns whether it may save at once.

        Otherwise all processes save together after one of the next steps.
        """
        return True

    def recover(self) -> bool:
        """After a failed step; returns whether the training goes on, from another step maybe."""
        return False

    def summarize(self, writer: SummaryWriter) -> None:
        """Writes what only this kind of training has to show."""
        del writer
