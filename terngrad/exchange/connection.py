"""What a worker needs of an engine: the other processes, and an exchange with them."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from terngrad.exchange.exchange import Exchange
    from terngrad.ops.kernels import Kernels


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
        """Every process' tensor, in the order of the processes: [...] -> [P, ...]."""
