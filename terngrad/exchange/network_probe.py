"""Measures the network between the processes of a training."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import tensorflow as tf

from terngrad.exchange.connection import Connection

_ROUNDS = 5
_FIRST_BYTES = 1 << 16
_SECS = 0.3  # of the longest message
_OCTET = 8  # bits


class NetworkSpeed(NamedTuple):
    """What a message costs.

    Attributes:
      latency_secs: seconds of a message beside its bytes.
      bits_per_sec: bits that the busiest cable carries in a second, in one direction.
    """

    latency_secs: float
    bits_per_sec: float


def measure_network(connection: Connection) -> NetworkSpeed:
    """Gathers messages of one number, and of growing size, for about a second.

    All processes call it at the same time and get the same result, that of the slowest.
    """
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
