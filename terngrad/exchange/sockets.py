"""The exchange over sockets, also encrypted, by the native mesh (terngrad/cc/net)."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from terngrad.cluster.addresses import name_of, split_address
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.peer_sockets import PeerSockets
from terngrad.connect.config import ConnectConfig
from terngrad.exchange.exchange import Exchange, LocalBucket, Summed, unordered
from terngrad.exchange.two_shot import Transport, TwoShotExchange
from terngrad.ops import library
from terngrad.ops.gradient_kernels import GradientKernels, Sums
from terngrad.ops.mesh import Decoding, Encoding, Mesh, MeshKind
from terngrad.ops.tls import NativeTlsSocket, encrypt
from terngrad.planes import GROUP, padded, plane_count

_VARIABLE, _NAME = "TERNGRAD_TRANSPORT", "sockets"  # formerly also TensorFlow's collectives
_CLOSE_SECS = 5.0
# A bucket of this size is encoded in a millisecond. If it is encoded whole, the memory of its
# gradients, still in the cache, is used for their means; an operation that encodes in parts keeps
# the gradients to its end.
_WHOLE_ELEMENTS = 1 << 22


def check_start() -> None:
    """Checks what `start` needs, before this process meets the others.

    Raises:
      ValueError: there are no native kernels, or TERNGRAD_TRANSPORT asks for something else.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in ("", _NAME):
        raise ValueError(
            f"{_VARIABLE} is {wanted!r}; allowed is {_NAME}: all-reduce over TensorFlow's "
            f"collectives is gone, native sockets replace it; unset {_VARIABLE}"
        )
    try:
        library.load()
    except library.UnavailableError as error:
        raise ValueError(
            f"all-reduce needs native kernels: {error}; parameter servers, mpi and horovod do "
            "without"
        ) from None


def start(config: ConnectConfig, token: bytes) -> SocketTransport:
    """Connects this process with all others; returns when it is.

    Args:
      config: of this process.
      token: secret that the processes share.

    Raises:
      PortError: this process cannot listen at its port.
      MembershipError: names the processes that cannot be reached.
      library.UnavailableError: there are no native kernels.
    """
    deadline = time.monotonic() + config.timeout_secs
    own, size = PeerSockets(config, token), len(config.worker_hosts)
    try:
        sockets = own.connect()
        if config.tls:
            sockets = encrypted(config, sockets, own, deadline)
        mesh = Mesh(config.rank, [name_of(i, config.worker_hosts) for i in range(size)], sockets)
    except BaseException:
        own.close()
        raise
    return SocketTransport(config.rank, size, mesh, own)


def _raise(why: str) -> None:
    raise MembershipError(why)


def encrypted(
    config: ConnectConfig,
    sockets: Mapping[int, socket.socket],
    own: PeerSockets,
    deadline: float,
    on_failure: Callable[[str], None] = _raise,
    check: Callable[[], None] = lambda: None,
) -> dict[int, NativeTlsSocket]:
    """Encrypts the sockets, one after another: all processes do it in the same order of pairs.

    Args:
      config: of this process, with certificates.
      sockets: one to each other process; owned from now on.
      own: made them.
      deadline: time.monotonic() at which a handshake fails.
      on_failure: called with a text that names a process whose certificate or handshake is wrong;
        raises MembershipError, or goes on without this socket.
      check: called repeatedly; an error that it raises ends the wait.
    """
    left, found, contexts = dict(sorted(sockets.items())), {}, config.tls
    try:
        for peer in list(left):
            secs = max(1.0, deadline - time.monotonic())
            host = split_address(config.worker_hosts[peer])[0]
            try:
                plain, is_server, name = left.pop(peer), config.rank < peer, own.name(peer)
                found[peer] = encrypt(
                    *(plain, contexts.files, host),
                    is_server=is_server,
                    timeout_secs=secs,
                    name=name,
                    check=check,
                )
                why = contexts.revocation(found[peer].certificate)
            except ConnectionError as error:
                why = str(error)
            if why:
                if peer in found:
                    found.pop(peer).close()
                on_failure(f"{name_of(peer, config.worker_hosts)}: {why}")
    except BaseException:
        for each in (*left.values(), *found.values()):
            each.close()
        raise
    return found


class SocketTransport(Transport):
    """Operations of a mesh. An error names the process that was lost."""

    def __init__(self, rank: int, size: int, mesh: Mesh, sockets: PeerSockets) -> None:
        """Uses a mesh of `size` processes, of which this one has index `rank`."""
        self.rank = rank
        self.size = size
        self.mesh = mesh
        self._sockets = sockets

    def exchange(self, local_nodes: int, kernels: GradientKernels, step: tf.Variable) -> Exchange:
        """See base class."""
        del step  # the processes match operations by their names
        return SocketExchange(self, local_nodes, kernels)

    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(parts, name, MeshKind.ALL_TO_ALL, parts.shape, parts.shape[1:])

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(part, name, MeshKind.GATHER, [self.size, *part.shape], part.shape)

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(value, name, MeshKind.BROADCAST, value.shape, value.shape)

    def sum_floats(self, values: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sum of the processes' float32 [n], that of `tree_sum`, and bytes."""
        return joined(self.mesh, values, name, MeshKind.FLOATS)

    def close(self) -> None:
        """Ends all operations, and this process' port."""
        self.mesh.close(_CLOSE_SECS)
        self._sockets.close()

    def _move(
        self,
        value: tf.Tensor,
        name: str,
        kind: MeshKind,
        shape: Sequence[int],
        moved: Sequence[int],
    ) -> tf.Tensor:
        octets = value.dtype.size * math.prod(moved)
        return unordered(self.mesh.join(value, self.mesh.declare(name, kind, octets), shape)[0])


def joined(mesh: Mesh, values: tf.Tensor, name: str, kind: MeshKind) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what the mesh makes of the processes' values [n], of the same shape, and bytes."""
    index = mesh.declare(name, kind, values.shape[0])
    result, octets = mesh.join(values, index, values.shape)
    return unordered(result), octets


class MeshConnection(Protocol):
    """A connection whose processes are joined by a mesh.

    Attributes:
      rank: index of this process.
      size: most processes that the mesh joins.
      mesh: joins them.
    """

    rank: int
    size: int
    mesh: Mesh


class SocketExchange(TwoShotExchange):
    """An exchange whose sums the mesh makes while parts arrive.

    Two processes need one shot: each sends all its codes and adds all. Codes and their sums travel
    in a prefix code (terngrad/prefix_code.py), whose bytes are known when they have been sent. No
    shape depends on the number of processes, so the mesh may join fewer than `size`.
    """

    packs_codes = True

    def __init__(
        self, connection: MeshConnection, local_nodes: int, kernels: GradientKernels
    ) -> None:
        """Joins `local_nodes` nodes of each process; for errors see base class."""
        super().__init__(connection, local_nodes, kernels)
        self._mesh = connection.mesh

    def sum_codes(self, bucket: LocalBucket) -> Summed:
        """See base class; parts are encoded, sent and decoded while others are on their way."""
        largest = self.local_nodes * bucket.max_code, self.largest_sum(bucket.max_code)
        rows, name = padded(bucket.elements) // GROUP, f"{bucket.name}/codes"
        path = self._kernels.packing.path
        operation = self._mesh.declare(name, MeshKind.CODES, rows, largest, path)
        on_gpu = self._kernels.on_gpu  # only codes and their sums leave it
        nodes, codes = self._nodes.read_value(), None
        decoding = Decoding(bucket.units, nodes, bucket.shapes, bucket.parts)
        if self._encodes_in_parts(bucket):
            local = Encoding(bucket.nodes[0], bucket.variables, bucket.encoder, bucket.parts)
        else:
            codes = bucket.encode()
            local = self._add(codes, bucket.max_code)
        found = self._mesh.join_codes(
            local,
            operation,
            [rows, plane_count(largest[1])],
            decoding if bucket.decoded and not on_gpu else None,
        )
        unordered(found.octets)
        self._count_both(found.octets)
        if bucket.decoded and on_gpu:
            return Summed(codes, self._kernels.decode(found.result, *decoding))
        if bucket.decoded:
            return Summed(codes or [found.codes], found.result)
        sums = Sums(bucket.variables, found.result, bucket.units, nodes, bucket.parts)
        return Summed(codes or [found.codes], sums)

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        largest = self.local_nodes * max_code, self.largest_sum(max_code)
        first, end = self.share(rows := local.shape[0])
        shape = [self._rows_of_share(rows), plane_count(largest[1])]
        sums = self._move_codes(
            local, f"{name}/scattered", MeshKind.SCATTER_CODES, rows, largest, shape
        )
        return sums[: end - first]

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        own = tf.pad(share, [[0, self._rows_of_share(rows) - share.shape[0]], [0, 0]])
        largest, shape = (max_code, max_code), [rows, share.shape[1]]
        return self._move_codes(
            own, f"{name}/gathered", MeshKind.GATHER_CODES, rows, largest, shape
        )

    def _move_codes(
        self,
        local: tf.Tensor,
        name: str,
        kind: MeshKind,
        rows: int,
        largest: tuple[int, int],
        shape: Sequence[int | None],
    ) -> tf.Tensor:
        mesh = self._mesh
        operation = mesh.declare(name, kind, rows, largest, self._kernels.packing.path)
        found, octets = mesh.join(local, operation, shape)
        unordered(octets)
        self._count_both(octets)
        return found

    def _encodes_in_parts(self, bucket: LocalBucket) -> bool:
        is_large = bucket.elements > _WHOLE_ELEMENTS
        is_one = bucket.encoder is not None and self.local_nodes == 1
        return is_large and is_one and not self._kernels.on_gpu

    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        return self._join(local, f"{name}/max", MeshKind.MAXIMA)

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        return self._join(local, f"{name}/floats", MeshKind.FLOATS)

    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        halves = self._join(tf.cast(local, tf.float16), f"{name}/halves", MeshKind.HALVES)
        return tf.cast(halves, tf.float32)

    def _join(self, local: tf.Tensor, name: str, kind: MeshKind) -> tf.Tensor:
        result, octets = joined(self._mesh, local, name, kind)
        self._count_both(octets)
        return result

    def _count_both(self, octets: tf.Tensor) -> None:
        """Counts the bytes of an operation that is done."""
        self.bytes_sent.assign_add(octets[0])
        self.bytes_received.assign_add(octets[1])
