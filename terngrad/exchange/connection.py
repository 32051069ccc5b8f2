"""What a worker needs of an engine: the other processes, and an exchange with them."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import Exchange
from terngrad.ops.kernels import Kernels


class InterruptionError(Exception):
    """The processes must agree where they stand before any of them goes on."""


class Connection(abc.ABC):
    """The processes of a training, joined by an engine.

    Attributes:
      rank: index of this process.
      size: P, their number.
    """

    rank: int
    size: int

    @abc.abstractmethod
    def exchange(self, local_nodes: int, kernels: Kernels, step: tf.Variable) -> Exchange:
        """An exchange of which each process computes `local_nodes` consecutive nodes.

        Args:
          local_nodes: of each process.
          kernels: add codes.
          step: int64 scalar, of the training: what is exchanged within a step belongs to it.
        """

    @abc.abstractmethod
    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """Every process' tensor, in the order of the processes: [...] -> [P, ...].

        One that joins when the others have theirs gets those, without its own.
        """

    @abc.abstractmethod
    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """Hands the state of one process to all that have another one.

        Args:
          state: everything that the processes have in common, the step first.

        Returns:
          Whether the training begins: it is the state with which the chief was started.
        """

    def was_interrupted(self) -> bool:
        """Whether the step that failed can be made again after `synchronize`."""
        return False

    def follows(self, step: int) -> bool:
        """Whether others make a step without this process, which must then compute nothing."""
        del step
        return False

    @property
    def leads(self) -> bool:
        """Whether this process saves: the chief, or who stands in for it while it is lost."""
        return self.rank == 0

    @property
    def spares(self) -> bool:
        """Whether a step may be made without this process."""
        return False
