"""All-reduce in two shots: each process sums one share of the values and sends the sums to all.

    all-to-all of codes -> integer sum of the own share -> all-gather of the packed sums

Nothing is quantized on the way, so the sum is exact. With P processes of one node each (N = P) and
ternary codes, a process sends 2 (P - 1) / P bits a value in the first shot and
ceil(log2(2 N + 1)) (P - 1) / P in the second. Two processes need one shot: each sends its 2 bits
a value to the other, and both add. Over sockets codes take fewer bits (exchange/sockets.py).
"""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from terngrad.exchange.connection import Connection, bytes_of
from terngrad.exchange.exchange import CodedPayload, Exchange, Payload, tree_sum
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.planes import largest_share, plane_count

_FEW_FLOATS = 8  # such as losses: each process sends them to all others, in one shot
_FEW_SCALES = 256  # the same; more are only where a variable has many
_VALUE_BYTES = 4  # of a value that a transport moves: float32 or 32-bit integer


def is_one_shot(local: float, total: float, processes: int) -> bool:
    """Returns whether one shot, each process to all others, takes no more bytes than two.

    Args:
      local: bits, or bytes, of what a process sends.
      total: the same of the sums over all processes.
      processes: P, their number.
    """
    return local * processes <= local + total


def _digest(value: np.ndarray) -> np.ndarray:
    """Returns a digest of an array's bytes, int32 [4]."""
    return np.frombuffer(hashlib.sha256(bytes_of(value)).digest()[:16], np.int32)


class Transport(Connection):
    """A network of P processes that move tensors of 4-byte values.

    The processes match operations by `name`, as in `Exchange`.

    Attributes:
      rank: index of this process.
      size: P, the number of processes.
    """

    def exchange(self, local_nodes: int, kernels: GradientKernels, step: tf.Variable) -> Exchange:
        """See base class."""
        del step  # the processes match these operations by their order or by their names
        return TwoShotExchange(self, local_nodes, kernels)

    @abc.abstractmethod
    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """Sends row i of [P, ...] to process i; row j of the result comes from process j."""

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """See base class; all processes start together, so they take the chief's state.

        Only variables that differ travel: those of new trainings begin alike on all processes.
        """
        digests = tf.constant(np.stack([_digest(variable.numpy()) for variable in state]))
        found = self.all_gather(digests, f"state/digests/{len(state)}").numpy()
        for i in np.flatnonzero((found != found[0]).any(axis=(0, 2))):
            self.copy(state[i])
        return True


class TwoShotExchange(Exchange):
    """An exchange over a transport."""

    def __init__(self, transport: Transport, local_nodes: int, kernels: GradientKernels) -> None:
        """Joins `local_nodes` nodes of each process; for errors see base class."""
        super().__init__(transport.rank, transport.size, local_nodes, kernels)
        self._transport = transport

    def traffic(self, payload: Payload) -> Payload:
        """See base class; in each of two shots a process keeps its own share."""
        if is_one_shot(payload.sent, payload.received, self._transport.size):
            octets = payload.sent * (self._transport.size - 1)
        else:
            octets = (payload.sent + payload.received) * self._others_share
        return Payload(octets, octets)

    def traffic_of_coded_sums(self, payload: Payload, coded: CodedPayload) -> Payload:
        """See base class; sums go to the owners, and their codes and all scales to all."""
        others, scales = self._transport.size - 1, 2 * coded.scales * self._others_share
        kept, owned = 1 - coded.own, coded.own * others
        return Payload(
            payload.sent * kept + coded.codes * owned + scales,
            payload.sent * owned + coded.codes * kept + scales,
        )

    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        count = local.shape[0]
        if count <= _FEW_SCALES or is_one_shot(1, 1, self._transport.size):
            return tf.reduce_max(self._gather(local, f"{name}/max"), axis=0)
        share = tf.reduce_max(self._exchange_shares(local, f"{name}/max"), axis=0)
        return self._gather_shares(share, f"{name}/maxima")[:count]

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        groups, planes = local.shape[0], plane_count(self.num_nodes * max_code)
        if is_one_shot(local.shape[1], planes, self._transport.size):
            parts = self._gather(_as_integers(local), f"{name}/codes")
            return self._sum_codes(parts, planes)
        share = self._sum_codes(self._exchange_shares(_as_integers(local), f"{name}/codes"), planes)
        total = self._gather_shares(_as_integers(share), f"{name}/sums")
        return tf.bitcast(total[:groups], tf.uint32)

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        size, (first, end) = self._rows_of_share(local.shape[0]), self.share(local.shape[0])
        parts = self._exchange_shares(_as_integers(local), f"{name}/scattered", size)
        return self._sum_codes(parts, plane_count(self.num_nodes * max_code))[: end - first]

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        del max_code
        padding = self._rows_of_share(rows) - share.shape[0]
        own = tf.pad(_as_integers(share), [[0, padding], [0, 0]])
        return tf.bitcast(self._gather_shares(own, f"{name}/gathered")[:rows], tf.uint32)

    def _rows_of_share(self, rows: int) -> int:
        return largest_share(rows, self._transport.size)

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        count = local.shape[0]
        if count <= _FEW_FLOATS or is_one_shot(1, 1, self._transport.size):
            return tree_sum(tf.unstack(self._gather(local, f"{name}/few")))
        parts = self._exchange_shares(local, f"{name}/floats")
        return self._gather_shares(tree_sum(tf.unstack(parts)), f"{name}/totals")[:count]

    def _sum_codes(self, parts: tf.Tensor, planes: int) -> tf.Tensor:
        """Returns the sum of int32 [P, G, k]: uint32 [G, planes]."""
        return self._kernels.sum([tf.bitcast(p, tf.uint32) for p in tf.unstack(parts)], planes)

    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        parts = self._exchange_shares(_pack_halves(local), f"{name}/halves")
        shares = [_unpack_halves(part) for part in tf.unstack(parts)]
        mean = _pack_halves(tree_sum(shares) / tf.cast(self._processes(), tf.float32))
        means = _unpack_halves(self._gather_shares(mean, f"{name}/means"))
        return means[: local.shape[0]]

    @property
    def _others_share(self) -> float:
        return (self._transport.size - 1) / self._transport.size

    def _processes(self) -> tf.Tensor:
        return self._nodes.read_value() // self.local_nodes

    def _exchange_shares(self, rows: tf.Tensor, name: str, share: int = 0) -> tf.Tensor:
        """Splits rows [G, ...] into P shares; returns this process': [P, share, ...].

        A share is of ceil(G / P) rows, unless another number is given.
        """
        processes = self._transport.size
        share = share or math.ceil(rows.shape[0] / processes)
        padding = [[0, share * processes - rows.shape[0]]] + [[0, 0]] * (rows.shape.rank - 1)
        parts = tf.reshape(tf.pad(rows, padding), [processes, share, *rows.shape[1:]])
        self._count(_VALUE_BYTES * parts.shape.num_elements() * self._others_share)
        return self._transport.all_to_all(parts, name)

    def _gather(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the values [n, ...] of all processes: [P, n, ...]."""
        self._count(_VALUE_BYTES * values.shape.num_elements() * (self._transport.size - 1))
        return self._transport.all_gather(values, name)

    def _gather_shares(self, share: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the processes' shares [S, ...] to [P S, ...]."""
        processes = self._transport.size
        self._count(_VALUE_BYTES * share.shape.num_elements() * (processes - 1))
        gathered = self._transport.all_gather(share, name)
        return tf.reshape(gathered, [processes * share.shape[0], *share.shape[1:]])

    def _count(self, octets: float) -> None:
        """Adds to both counters: a process receives as much as it sends in these operations."""
        whole = tf.constant(round(octets), tf.int64)
        self.bytes_sent.assign_add(whole)
        self.bytes_received.assign_add(whole)


def _as_integers(words: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(words, tf.int32)


def _pack_halves(values: tf.Tensor) -> tf.Tensor:
    """Packs float32 [n] as float16 into int32 [ceil(n / 2)]."""
    halves = tf.cast(tf.pad(values, [[0, values.shape[0] % 2]]), tf.float16)
    return tf.bitcast(tf.reshape(halves, [-1, 2]), tf.int32)


def _unpack_halves(packed: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.bitcast(packed, tf.float16), [-1]), tf.float32)
