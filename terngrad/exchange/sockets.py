"""The exchange between CPUs over plain sockets, by the native mesh (terngrad/cc/net)."""

from __future__ import annotations

import functools
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence

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
from terngrad.planes import WORD_BYTES, packed_bits, packed_bytes, plane_count
from terngrad.service.members import Members

_FEW_FLOATS = 8  # such as losses: one shot, as in cc/net/reduce.cc
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

    def sum_codes(
        self, words: tf.Tensor, name: str, largest: tuple[int, int], path: str
    ) -> tf.Tensor:
        """Returns the sum of the processes' codes, uint32 [G, k].

        Args:
          words: this process' codes, uint32 [G, k].
          name: of the operation.
          largest: magnitude of a process' codes, and of their sum.
          path: see `Mesh.declare`.
        """
        index = self._declare_codes(words, name, largest, path)
        return unordered(self.mesh.join(words, index, [words.shape[0], plane_count(largest[1])]))

    def mean_codes(
        self,
        words: tf.Tensor,
        name: str,
        largest: tuple[int, int],
        path: str,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> list[tf.Tensor]:
        """Returns `sum_codes`, decoded (see `Kernels.decode`), as its parts come."""
        index = self._declare_codes(words, name, largest, path)
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

    def _declare_codes(
        self, words: tf.Tensor, name: str, largest: tuple[int, int], path: str
    ) -> int:
        return self.mesh.declare(name, Kind.CODES, words.shape[0], largest, path)

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

    Two processes need one shot: each sends all its codes and adds all. Ternary codes travel in
    base 3, in 1.6 bits a value.
    """

    def __init__(self, transport: SocketTransport, local_nodes: int, kernels: Kernels) -> None:
        """See base class."""
        super().__init__(transport, local_nodes, kernels)
        self._path = kernels.path if isinstance(kernels, NativeKernels) else ""

    def code_bits(self, largest: int) -> float:
        """See base class."""
        return packed_bits(largest)

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
        largest = self._count_codes(local, max_code)
        nodes = self._nodes.read_value()
        return self._transport.mean_codes(
            local, f"{name}/codes", largest, self._path, units, nodes, shapes
        )

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        largest = self._count_codes(local, max_code)
        return self._transport.sum_codes(local, f"{name}/codes", largest, self._path)

    def _count_codes(self, local: tf.Tensor, max_code: int) -> tuple[int, int]:
        """Counts the bytes of a sum; returns the largest magnitude of its parts, and its own."""
        own, total = self.local_nodes * max_code, self.num_nodes * max_code
        parts, sums = (functools.partial(packed_bytes, largest=each) for each in (own, total))
        self._count_sums(local.shape[0], parts, sums, few=False)
        return own, total

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        count = local.shape[0]
        floats = lambda rows: WORD_BYTES * rows
        self._count_sums(count, floats, floats, few=count <= _FEW_FLOATS)
        return self._transport.sum_floats(local, f"{name}/floats")

    def _count_sums(
        self, rows: int, parts: Callable[[int], int], sums: Callable[[int], int], *, few: bool
    ) -> None:
        """Counts the bytes of the parts and, with two shots, of the sums; both of a row count."""
        size, rank = self._transport.size, self._transport.rank
        if few or size <= 2:
            sent = received = (size - 1) * parts(rows)
        else:
            step = math.ceil(rows / size)
            shares = [max(0, min(step, rows - i * step)) for i in range(size)]
            own = shares.pop(rank)
            sent = sum(map(parts, shares)) + (size - 1) * sums(own)
            received = (size - 1) * parts(own) + sum(map(sums, shares))
        self.bytes_sent.assign_add(tf.constant(sent, tf.int64))
        self.bytes_received.assign_add(tf.constant(received, tf.int64))
