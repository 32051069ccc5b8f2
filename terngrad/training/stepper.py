"""The interface by which a loop makes steps: all workers together, or each on its own."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.training.summaries import SummaryWriter
from terngrad.training.timing import Progress


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
