"""The exchange over TensorFlow's collective runtime: gRPC, where native kernels are not built."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange import collective_runtime
from terngrad.exchange.exchange import unordered
from terngrad.exchange.two_shot import Transport

_GROUP = 1  # key of the group of all processes


def start(hosts: Sequence[str], rank: int, timeout_secs: float = 60.0) -> CollectiveTransport:
    """Starts this process' server; returns when the servers of all processes run.

    Call it before TensorFlow computes anything. It waits forever: the caller must watch the other
    processes and end this one when one of them is lost.

    Args:
      hosts: "host:port" of each process.
      rank: index of this process.
      timeout_secs: time after which the caller counts a silent process as lost. TensorFlow gets a
        longer time-out, because its error does not name the process.

    Raises:
      PortError: this process' port is taken.
    """
    collective_runtime.start(hosts, rank, timeout_secs)
    return CollectiveTransport(rank, len(hosts))


def check_start() -> None:
    """Raises ValueError if it is too late for `start`, because TensorFlow computes already."""
    if collective_runtime.is_too_late():
        raise ValueError(
            "TensorFlow has computed something already; workers must meet before that, so first of "
            "all, and make data sets, models and variables after it"
        )


class CollectiveTransport(Transport):
    """Collectives of the runtime that `start` started."""

    def __init__(self, rank: int, size: int) -> None:
        """Joins `size` processes; this one has index `rank`."""
        self.rank = rank
        self.size = size
        self._names: dict[int, str] = {}

    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return unordered(tf.raw_ops.CollectiveAllToAllV2(input=parts, **self.arguments(name)))

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        rows = tf.raw_ops.CollectiveGatherV2(input=part[tf.newaxis], **self.arguments(name))
        return tf.ensure_shape(unordered(rows), [self.size, *part.shape])

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        arguments = self.arguments(name)
        del arguments["ordering_token"]
        if self.rank == 0:
            return tf.raw_ops.CollectiveBcastSendV2(input=value, **arguments)
        shape = tf.shape(value)
        return tf.raw_ops.CollectiveBcastRecvV2(T=value.dtype, shape=shape, **arguments)

    def arguments(self, name: str) -> dict:
        """Returns the arguments that each raw operation takes beside its tensors.

        Raises:
          ValueError: another name has the same key.
        """
        # Keys come from names: processes may trace operations in different orders.
        key = zlib.crc32(name.encode()) & 0x7FFFFFFF
        if self._names.setdefault(key, name) != name:
            raise ValueError(f"operations {name!r} and {self._names[key]!r} get the same key")
        return {
            "group_size": tf.constant(self.size),
            "group_key": tf.constant(_GROUP),
            "instance_key": tf.constant(key),
            "ordering_token": [],
            "communication_hint": "ring",
        }
