"""The exchange between CPUs over plain sockets, by the native mesh (terngrad/cc/net)."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from terngrad.cluster.channel import MembershipError, name_of, split_address
from terngrad.cluster.seats import Seats
from terngrad.exchange.exchange import Exchange
from terngrad.exchange.ordering import unordered
from terngrad.exchange.two_shot import Transport, TwoShotExchange
from terngrad.ops.kernels import Kernels
from terngrad.ops.mesh import Kind, Mesh
from terngrad.ops.native import NativeKernels
from terngrad.ops.tls import Channel, encrypt
from terngrad.planes import plane_count
from terngrad.service.members import Members

_FEW_FLOATS = 8  # such as losses: one shot, as in cc/net/reduce.cc
_WORD_BYTES = 4
_CLOSE_SECS = 5.0


def start(
    hosts: Sequence[str],
    rank: int,
    token: bytes,
    timeout_secs: float = 60.0,
    members: Members | None = None,
) -> SocketTransport:
    """Connects this process with all others; returns when it is.

    Args:
      hosts: "host:port" of each process.
      rank: index of this process.
      token: secret that the processes share.
      timeout_secs: time to connect, and after which the caller counts a silent process as lost.
      members: encrypts the connections; None = they are plain.

    Raises:
      PortError: this process cannot listen at its port.
      MembershipError: names the processes that cannot be reached.
      library.UnavailableError: there are no native kernels.
    """
    deadline = time.monotonic() + timeout_secs
    seats = Seats(hosts, rank, token)
    try:
        sockets = seats.fill(timeout_secs)
        if members:
            sockets = _encrypted(sockets, hosts, rank, members, deadline)
        mesh = Mesh(rank, [name_of(i, hosts) for i in range(len(hosts))], sockets)
    except BaseException:
        seats.close()
        raise
    return SocketTransport(rank, len(hosts), mesh, seats)


def _encrypted(
    sockets: Mapping[int, socket.socket],
    hosts: Sequence[str],
    rank: int,
    members: Members,
    deadline: float,
) -> dict[int, Channel]:
    """Encrypts the sockets, one after another: all processes do it in the same order of pairs."""
    left, found = dict(sorted(sockets.items())), {}
    try:
        for peer in list(left):
            secs = max(1.0, deadline - time.monotonic())
            host = split_address(hosts[peer])[0]
            try:
                plain, is_server = left.pop(peer), rank < peer
                found[peer] = encrypt(
                    plain, members.files, host, is_server=is_server, timeout_secs=secs
                )
                why = members.withdrawal(found[peer].certificate)
            except ConnectionError as error:
                why = str(error)
            if why:
                raise MembershipError(f"{name_of(peer, hosts)}: {why}")
    except BaseException:
        for each in (*left.values(), *found.values()):
            each.close()
        raise
    return found


class SocketTransport(Transport):
    """Operations of a mesh. An error names the process that was lost."""

    def __init__(self, rank: int, size: int, mesh: Mesh, seats: Seats) -> None:
        """Uses a mesh of `size` processes, of which this one has index `rank`."""
        self.rank = rank
        self.size = size
        self.mesh = mesh
        self._seats = seats

    def exchange(self, local_nodes: int, kernels: Kernels, step: tf.Variable) -> Exchange:
        """See base class."""
        del step  # the processes match operations by their names
        return SocketExchange(self, local_nodes, kernels)

    def all_to_all(self, parts: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(parts, name, Kind.ALL_TO_ALL, parts.shape, parts.shape[1:])

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(part, name, Kind.GATHER, [self.size, *part.shape], part.shape)

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        return self._move(value, name, Kind.BROADCAST, value.shape, value.shape)

    def sum_codes(self, words: tf.Tensor, name: str, planes: int, path: str) -> tf.Tensor:
        """Returns the sum of the processes' codes, uint32 [G, k], in `planes` planes."""
        index = self._declare_codes(words, name, planes, path)
        return unordered(self.mesh.join(words, index, [words.shape[0], planes]))

    def mean_codes(
        self,
        words: tf.Tensor,
        name: str,
        planes: int,
        path: str,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> list[tf.Tensor]:
        """Returns `sum_codes`, decoded (see `Kernels.decode`), as its parts come."""
        index = self._declare_codes(words, name, planes, path)
        means = self.mesh.join_means(words, index, units, nodes, shapes)
        unordered(means[0])
        return means

    def sum_floats(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum of the processes' float32 [n]: that of `tree_sum`."""
        index = self.mesh.declare(name, Kind.FLOATS, values.shape[0])
        return unordered(self.mesh.join(values, index, values.shape))

    def close(self) -> None:
        """Ends all operations, and this process' port."""
        self.mesh.close(_CLOSE_SECS)
        self._seats.close()

    def _declare_codes(self, words: tf.Tensor, name: str, planes: int, path: str) -> int:
        groups, own = words.shape
        return self.mesh.declare(name, Kind.CODES, groups, (own, planes), path)

    def _move(
        self,
        value: tf.Tensor,
        name: str,
        kind: Kind,
        shape: Sequence[int],
        moved: Sequence[int],
    ) -> tf.Tensor:
        octets = value.dtype.size * math.prod(moved)
        return unordered(self.mesh.join(value, self.mesh.declare(name, kind, octets), shape))


class SocketExchange(TwoShotExchange):
    """An exchange whose sums the mesh makes while parts arrive.

    Two processes need one shot: each sends all its codes and adds all.
    """

    def __init__(self, transport: SocketTransport, local_nodes: int, kernels: Kernels) -> None:
        """See base class."""
        super().__init__(transport, local_nodes, kernels)
        self._path = kernels.path if isinstance(kernels, NativeKernels) else ""

    def mean_of_codes(
        self,
        codes: Sequence[tf.Tensor],
        name: str,
        max_code: int,
        units: tf.Tensor,
        shapes: Sequence[Sequence[int]],
        kernels: Kernels,
    ) -> list[tf.Tensor]:
        """See base class; parts of the sum are decoded while others are on their way."""
        del kernels  # all give the same bits
        local = self._local_sum(codes, max_code)
        planes = self._count_codes(local, max_code)
        nodes = self._nodes.read_value()
        return self._transport.mean_codes(
            local, f"{name}/codes", planes, self._path, units, nodes, shapes
        )

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        planes = self._count_codes(local, max_code)
        return self._transport.sum_codes(local, f"{name}/codes", planes, self._path)

    def _count_codes(self, local: tf.Tensor, max_code: int) -> int:
        """Counts the bytes of a sum of codes, and returns its planes."""
        groups, own = local.shape
        planes = plane_count(self.num_nodes * max_code)
        self._count_sums(groups, _WORD_BYTES * own, _WORD_BYTES * planes, few=False)
        return planes

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        count = local.shape[0]
        self._count_sums(count, _WORD_BYTES, _WORD_BYTES, few=count <= _FEW_FLOATS)
        return self._transport.sum_floats(local, f"{name}/floats")

    def _count_sums(self, rows: int, row_bytes: int, sum_bytes: int, *, few: bool) -> None:
        """Counts the bytes of the parts and, with two shots, of the sums."""
        others = self._transport.size - 1
        if few or others <= 1:
            sent = received = others * rows * row_bytes
        else:
            share = math.ceil(rows / self._transport.size)
            own = max(0, min(share, rows - self._transport.rank * share))
            sent = (rows - own) * row_bytes + others * own * sum_bytes
            received = others * own * row_bytes + (rows - own) * sum_bytes
        self.bytes_sent.assign_add(tf.constant(sent, tf.int64))
        self.bytes_received.assign_add(tf.constant(received, tf.int64))
