"""The exchange between CPUs over sockets, also encrypted, by the native mesh (terngrad/cc/net)."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from terngrad.cluster.channel import MembershipError, name_of, split_address
from terngrad.cluster.seats import Seats
from terngrad.exchange.exchange import Encoded, Exchange
from terngrad.exchange.ordering import unordered
from terngrad.exchange.two_shot import Transport, TwoShotExchange
from terngrad.ops.kernels import EncodeInputs, Kernels
from terngrad.ops.mesh import Kind, Mesh
from terngrad.ops.native import NativeKernels
from terngrad.ops.tls import Channel, encrypt
from terngrad.planes import GROUP, padded, plane_count
from terngrad.service.members import Members

_CLOSE_SECS = 5.0
# Up to here a bucket is encoded in a millisecond. Then its gradients' memory, still in the cache,
# is used for their means; an operation that encodes keeps them to its end.
_WHOLE_ELEMENTS = 1 << 22


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
            sockets = _encrypted(sockets, seats, hosts, rank, members, deadline)
        mesh = Mesh(rank, [name_of(i, hosts) for i in range(len(hosts))], sockets)
    except BaseException:
        seats.close()
        raise
    return SocketTransport(rank, len(hosts), mesh, seats)


def _encrypted(
    sockets: Mapping[int, socket.socket],
    seats: Seats,
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
                plain, is_server, name = left.pop(peer), rank < peer, seats.name(peer)
                found[peer] = encrypt(
                    plain, members.files, host, is_server=is_server, timeout_secs=secs, name=name
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
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sum of the processes' codes, uint32 [G, k], and bytes; see `Mesh.join`.

        Args:
          words: this process' codes, uint32 [G, k].
          name: of the operation.
          largest: magnitude of a process' codes, and of their sum.
          path: see `Mesh.declare`.
        """
        index = self._declare_codes(words.shape[0], name, largest, path)
        total, octets = self.mesh.join(words, index, [words.shape[0], plane_count(largest[1])])
        return unordered(total), octets

    def mean_codes(
        self,
        words: tf.Tensor,
        name: str,
        largest: tuple[int, int],
        path: str,
        units: tf.Tensor,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns `sum_codes`, decoded (see `Kernels.decode`) as its parts come, and bytes."""
        index = self._declare_codes(words.shape[0], name, largest, path)
        means, octets = self.mesh.join_means(words, index, units, nodes, shapes)
        unordered(means[0])
        return means, octets

    def mean_gradients(
        self,
        inputs: EncodeInputs,
        variables: Sequence[int],
        name: str,
        path: str,
        nodes: tf.Tensor,
        shapes: Sequence[Sequence[int]],
    ) -> tuple[Encoded, tf.Tensor]:
        """Returns ternary codes of one node (see `Kernels.encode`) and their means, and bytes."""
        index = self._declare_ternary(sum(map(math.prod, shapes)), name, path)
        means, codes, octets = self.mesh.encode_join_means(inputs, variables, index, nodes, shapes)
        unordered(codes)
        return Encoded(codes, means), octets

    def sum_gradients(
        self, inputs: EncodeInputs, variables: Sequence[int], name: str, elements: int, path: str
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns ternary codes of one node (see `Kernels.encode`), their sum, and bytes."""
        index = self._declare_ternary(elements, name, path)
        codes, total, octets = self.mesh.encode_join(inputs, variables, index)
        return unordered(codes), total, octets

    def sum_floats(self, values: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the sum of the processes' float32 [n], that of `tree_sum`, and bytes."""
        index = self.mesh.declare(name, Kind.FLOATS, values.shape[0])
        total, octets = self.mesh.join(values, index, values.shape)
        return unordered(total), octets

    def close(self) -> None:
        """Ends all operations, and this process' port."""
        self.mesh.close(_CLOSE_SECS)
        self._seats.close()

    def _declare_ternary(self, elements: int, name: str, path: str) -> int:
        return self._declare_codes(padded(elements) // GROUP, name, (1, self.size), path)

    def _declare_codes(self, rows: int, name: str, largest: tuple[int, int], path: str) -> int:
        return self.mesh.declare(name, Kind.CODES, rows, largest, path)

    def _move(
        self,
        value: tf.Tensor,
        name: str,
        kind: Kind,
        shape: Sequence[int],
        moved: Sequence[int],
    ) -> tf.Tensor:
        octets = value.dtype.size * math.prod(moved)
        return unordered(self.mesh.join(value, self.mesh.declare(name, kind, octets), shape)[0])


class SocketExchange(TwoShotExchange):
    """An exchange whose sums the mesh makes while parts arrive.

    Two processes need one shot: each sends all its codes and adds all. Codes and their sums travel
    in a prefix code (terngrad/prefix_code.py), whose bytes are known when they have been sent.
    """

    packs_codes = True

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
        nodes = self._nodes.read_value()
        means, octets = self._transport.mean_codes(
            local, f"{name}/codes", self._largest(max_code), self._path, units, nodes, shapes
        )
        self._count_both(octets)
        return means

    def mean_while_encoding(
        self,
        inputs: EncodeInputs,
        variables: Sequence[int],
        name: str,
        shapes: Sequence[Sequence[int]],
    ) -> Encoded | None:
        """See base class; for large buckets, where a process has one node."""
        if not self._encodes_in_parts(sum(map(math.prod, shapes))):
            return None
        nodes, name = self._nodes.read_value(), f"{name}/codes"
        found, octets = self._transport.mean_gradients(
            inputs, variables, name, self._path, nodes, shapes
        )
        self._count_both(octets)
        return found

    def sum_while_encoding(
        self, inputs: EncodeInputs, variables: Sequence[int], name: str, elements: int
    ) -> tuple[tf.Tensor, tf.Tensor] | None:
        """See base class; for large buckets, where a process has one node."""
        if not self._encodes_in_parts(elements):
            return None
        codes, total, octets = self._transport.sum_gradients(
            inputs, variables, f"{name}/codes", elements, self._path
        )
        self._count_both(octets)
        return codes, total

    def _encodes_in_parts(self, elements: int) -> bool:
        return self.local_nodes == 1 and elements > _WHOLE_ELEMENTS

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        total, octets = self._transport.sum_codes(
            local, f"{name}/codes", self._largest(max_code), self._path
        )
        self._count_both(octets)
        return total

    def _largest(self, max_code: int) -> tuple[int, int]:
        """Returns the largest magnitude of a process' codes, and of their sum."""
        return self.local_nodes * max_code, self.num_nodes * max_code

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        total, octets = self._transport.sum_floats(local, f"{name}/floats")
        self._count_both(octets)
        return total

    def _count_both(self, octets: tf.Tensor) -> None:
        self.bytes_sent.assign_add(octets[0])
        self.bytes_received.assign_add(octets[1])
