"""A worker's connection to the others: an exchange, a common state, and how fast it is."""

from __future__ import annotations

import abc
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.exchange.exchange import Exchange
from terngrad.ops.gradient_kernels import GradientKernels


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of an array, uint8 [n], in C order; a copy only where it is not."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def packed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the bytes of arrays as int32, which every engine moves."""
    words = np.zeros(-(-sum(array.nbytes for array in arrays) // 4), np.int32)
    content, start = words.view(np.uint8), 0
    for array in arrays:
        content[start : start + array.nbytes] = bytes_of(array)
        start += array.nbytes
    return words


def unpacked(words: np.ndarray, kinds: Sequence[tuple[Sequence[int], Any]]) -> list[np.ndarray]:
    """Returns the arrays, of some shapes and types, whose bytes `packed` has returned."""
    content, start, arrays = words.data, 0, []
    for shape, dtype in kinds:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, dtype, count, start).reshape(shape))
        start += count * np.dtype(dtype).itemsize
    return arrays


class Connection(abc.ABC):
    """The processes of a training, joined by an engine.

    Attributes:
      rank: index of this process.
      size: P, the number of processes.
      largest_part: bytes that a process may give to `all_gather`.
      repeats_steps: whether a failed step may be repeated, see `was_interrupted`.
      owners_change: whether the shares of coded sums go to others where processes come or go.
      matches_by_order: whether operations match by their order, so that one thread must make all.
    """

    rank: int
    size: int
    largest_part: int = 1 << 26
    repeats_steps: bool = False
    owners_change: bool = False
    matches_by_order: bool = False

    @abc.abstractmethod
    def exchange(self, local_nodes: int, kernels: GradientKernels, step: tf.Variable) -> Exchange:
        """Returns an exchange in which each process computes `local_nodes` consecutive nodes.

        Args:
          local_nodes: nodes of each process.
          kernels: add codes.
          step: the training's step, int64 scalar; each operation belongs to the current step.
        """

    @abc.abstractmethod
    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the tensors of all processes, in the order of the processes: [...] -> [P, ...].

        A process that joins late gets the tensors of the others, without its own.
        """

    @abc.abstractmethod
    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the tensor of process 0, of the same shape and type on all."""

    def copy(self, variable: tf.Variable) -> None:
        """Assigns the value of process 0; all processes copy variables of equal shapes and types.

        It travels as words, since not every engine moves every type, under the name of its size,
        since a name keeps its size: the next variable, or that of another training, has another.
        """
        own = tf.constant(packed([variable.numpy()]))
        content = self.broadcast(own, f"copy/{len(own)}").numpy()
        if self.rank != 0:
            kind = (variable.shape, variable.dtype.as_numpy_dtype)
            variable.assign(unpacked(content, [kind])[0])

    @abc.abstractmethod
    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """Copies the state of one process to all processes whose state differs.

        Args:
          state: all variables that the processes have in common, the step first.

        Returns:
          Whether the training begins now, with the state that the chief loaded.
        """

    def close(self) -> None:  # noqa: B027 (most engines end with their process)
        """Ends all operations, after all data of this process has been sent."""

    @property
    def gather_copies(self) -> float:
        """How often the busiest link carries a process' part in `all_gather`, in one direction."""
        return self.size - 1

    @property
    def exchange_copies(self) -> float:
        """How often the busiest link carries a process' gradients, in one direction."""
        return 1

    def was_interrupted(self) -> bool:
        """Whether the failed step can be repeated after `synchronize`."""
        return False

    @property
    def version(self) -> int:
        """Changes before `synchronize` changes the state."""
        return 0

    def give_up(self, why: str, *, alone: bool = False) -> None:
        """Ends the training of all processes while a step waits for a lost one.

        This process was asked to end, and has saved.

        Args:
          why: the reason.
          alone: end that of this process only.
        """
        del why, alone

    def is_excluded(self, step: int) -> bool:
        """Whether the others make a step without this process, which then skips its batch."""
        del step
        return False

    @property
    def saver(self) -> int | None:
        """Rank of the process that saves: the chief's, or of one in its place; None = nobody."""
        return 0

    @property
    def is_saver(self) -> bool:
        """Whether this process saves."""
        return self.saver == self.rank

    @property
    def has_backup_workers(self) -> bool:
        """Whether the others may make a step without this process."""
        return False


_ROUNDS = 5
_FIRST_BYTES = 1 << 16
_SECS = 0.3  # of the longest message
_OCTET = 8  # bits


class NetworkSpeed(NamedTuple):
    """What a message costs.

    Attributes:
      latency_secs: seconds of a message beside its bytes.
      bits_per_sec: bits that the busiest link carries in a second, in one direction.
    """

    latency_secs: float
    bits_per_sec: float


def measure_network(connection: Connection) -> NetworkSpeed | None:
    """Gathers messages of one number, and of growing size, for about a second.

    All processes call it at the same time and get the same result, that of the slowest.

    Returns:
      The network's speed; None if no message leaves this process.
    """
    if not connection.gather_copies:
        return None
    latency = _seconds(connection, 4, "latency")
    size = min(_FIRST_BYTES, connection.largest_part)
    seconds = _seconds(connection, size, "bandwidth")
    if (larger := min(connection.largest_part, round(size * _SECS / seconds))) > 2 * size:
        size, seconds = larger, _seconds(connection, larger, "bandwidth of a longer message")
    carried = _OCTET * size * connection.gather_copies
    # A message that is short for this network takes hardly longer than one of a number.
    return NetworkSpeed(latency, carried / max(seconds - latency, seconds / 10))


def _seconds(connection: Connection, size: int, name: str) -> float:
    """Returns the median seconds of an all-gather of `size` bytes from each process."""
    part = tf.zeros([-(-size // 4)], tf.int32)  # a type that all engines take
    measured = []
    for i in range(_ROUNDS):
        start = time.perf_counter()
        connection.all_gather(part, f"{name} {i}").numpy()
        elapsed = tf.constant([time.perf_counter() - start], tf.float32)
        # The slowest counts, on all alike: the size of the next message depends on it.
        measured.append(float(tf.reduce_max(connection.all_gather(elapsed, f"{name} {i} secs"))))
    return statistics.median(measured)
