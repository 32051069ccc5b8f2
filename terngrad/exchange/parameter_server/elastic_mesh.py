"""Elastic all-reduce, which goes on without lost workers: a mesh for each view.

The coordinator decides the views, as it does with parameter servers. A socket connects every pair
of members of a view. Members prove a token that no other view has, so no frame of one view reaches
another.

A worker updates when it has all sums of a step. Each sum has the codes of all members, so none can
be more than one step ahead of another, and no further round trip is needed. In the next view, a
worker that is behind gets the state of one that is not. When a view ends although all its members
live, they end at the same step: a worker leaves a mesh only after a step, and sends before what the
others need for that step.

Shares of coded sums (codecs/sum_codec.py) are those of the members of a view, so their owners begin
anew with each view. Shapes in graphs do not change: an owner holds codes and memory for all values,
of which those of others are zeros.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.cluster.addresses import (
    CONTROL_PORT_ABOVE,
    LAST_PORT,
    host_and_port,
    is_loopback,
    name_of,
    split_address,
)
from terngrad.cluster.errors import PortError
from terngrad.cluster.membership import LOST_STATUS
from terngrad.cluster.peer_sockets import PeerSockets
from terngrad.connect.config import ConnectConfig
from terngrad.coordination import groups
from terngrad.coordination.client import CoordinatorClient
from terngrad.exchange.exchange import Owner
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.exchange.parameter_server.worker_exit import LeaveTrainingError
from terngrad.exchange.sockets import SocketExchange, encrypted
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.mesh import Mesh, MeshKind
from terngrad.planes import GROUP, SUM_BLOCK, plane_count
from terngrad.service.messages import View

_ENDS = "workers come or go"
# For the step under way to end, where it can, after the coordinator has asked for a new view.
_STEP_SECS = 0.5
_SEND_SECS = 0.3  # for what others need of a step that this worker has made
_CLOSE_SECS = 5.0  # likewise, where it leaves for good; nobody waits for it then
_POLL_SECS = 0.05


def leavers(unreached: Mapping[int, Collection[int]], coordinator: int) -> frozenset[int]:
    """Returns the workers that leave, so that all others reach each other.

    Args:
      unreached: by worker, those that it does not reach.
      coordinator: the worker that leaves last of all.
    """
    pairs = {frozenset((a, b)) for a, others in unreached.items() for b in others}
    left: set[int] = set()
    while pairs:
        counts = collections.Counter(worker for pair in pairs for worker in pair)
        _, _, worst = max((each != coordinator, counts[each], each) for each in counts)
        left.add(worst)
        pairs = {pair for pair in pairs if not pair & left}
    return frozenset(left)


def listen_for_members(config: ConnectConfig) -> socket.socket:
    """Listens at a port that a firewall between machines may let through: its own + 1000.

    Where that is taken, and on one machine alone, it is any: another program may be about to take
    a port of this machine that it has found to be free.

    Raises:
      PortError: this process cannot listen at its host.
    """
    host, port = split_address(config.worker_hosts[config.rank])
    known = port + CONTROL_PORT_ABOVE
    if not is_loopback(host) and known <= LAST_PORT:
        with contextlib.suppress(PortError):
            return config.listen(host, known)
    return config.listen(host, 0)


class ElasticMesh(ParameterServerConnection):
    """A worker's connection to the other workers of its view.

    Attributes:
      mesh: of the current view.
    """

    def __init__(self, client: Client, config: ConnectConfig) -> None:
        """Starts without a view.

        Args:
          client: the coordinator's client.
          config: of this process.

        Raises:
          library.UnavailableError: there are no native kernels.
        """
        super().__init__(client, owners_change=True)
        self._config = config
        self._hosts = config.worker_hosts
        self.mesh = Mesh(0, [config.name], {})
        self.mesh.fail(_ENDS)
        self._lock = threading.Lock()
        self._number = 0  # of meshes so far
        self._ending = 0  # number of the mesh that ends soon
        client.steps.delegate(self._end_soon)

    def _make_exchange(
        self, local_nodes: int, kernels: GradientKernels, step: tf.Variable
    ) -> ElasticMeshExchange:
        """See base class."""
        return ElasticMeshExchange(self, local_nodes, kernels, step)

    def was_interrupted(self) -> bool:
        """See base class; a step that failed by an error of its own is not one to repeat."""
        failure = self.mesh.failure
        if failure.is_refusal:
            self._client.refuse(failure.why)
        return self._client.steps.interrupted or (bool(failure.why) and not failure.is_own)

    @property
    def exchange_copies(self) -> float:
        """See base class."""
        return 1

    def close(self) -> None:
        """See base class."""
        self.mesh.close(_CLOSE_SECS)

    def end_step(self, step: int) -> None:
        """Ends a step whose results are all there, and with it the mesh where a view ends."""
        if not self._client.steps.commit(step):
            self.mesh.end(_SEND_SECS)

    def _leave(self) -> None:
        """See base class."""
        self.mesh.end(_SEND_SECS)

    def _enter(self, view: View) -> None:
        """See base class."""
        members = groups.unpack(view.members)
        others = _Others(self._config, self._client.coordination, view)
        sockets = others.connect()
        with self._lock:
            names = [name_of(member, self._hosts) for member in members]
            self.mesh.renew(members.index(self.rank), names, sockets)
            self._number += 1
        super()._enter(view)
        if self._client.steps.interrupted:  # meanwhile
            self._end_soon()

    def _owner_of(self, members: Sequence[int]) -> Owner:
        """See base class; a view has a share for each member."""
        return super()._owner_of(members)._replace(shares=len(members))

    def _end_soon(self) -> None:
        """Gives up the step under way if it does not end soon."""
        with self._lock:
            if self._ending == self._number:
                return
            self._ending = self._number
        timer = threading.Timer(_STEP_SECS, self._end, [self._number])
        timer.daemon = True
        timer.start()

    def _end(self, number: int) -> None:
        with self._lock:
            if number == self._number:
                self.mesh.fail(_ENDS)


class _Others:
    """Connects this worker with the others of a view."""

    def __init__(self, config: ConnectConfig, coordination: CoordinatorClient, view: View) -> None:
        """Connects nothing yet."""
        self._config, self._coordination, self._view = config, coordination, view
        self._members = groups.unpack(view.members)
        self._rank = self._members.index(config.rank)

    def connect(self) -> dict[int, socket.socket]:
        """Returns a socket to each other member, plain or encrypted, by its index in the view.

        Raises:
          InterruptionError: the view is no longer valid.
          MembershipError: the training ends.
          LeaveTrainingError: the others go on without this worker, which cannot reach them all.
        """
        with listen_for_members(self._config) as listening:
            config, token = self._agree(listening.getsockname()[1])
            peers = PeerSockets(config, token, listening.dup())
        sockets: dict[int, socket.socket] = {}
        try:
            sockets = peers.reach(self._coordination.check)
            if config.tls:
                plain, sockets = sockets, {}
                deadline = time.monotonic() + config.timeout_secs
                check = self._coordination.check
                sockets = encrypted(config, plain, peers, deadline, self._log_problem, check)
            self._leave_if_unreached(set(range(len(self._members))) - {self._rank, *sockets})
        except BaseException:
            for each in sockets.values():
                each.close()
            raise
        finally:
            peers.close()
        return sockets

    def _agree(self, port: int) -> tuple[ConnectConfig, bytes]:
        """Returns the addresses of the members' sockets, and the view's token."""
        content = json.dumps([port, secrets.token_hex(16)]).encode()
        found = self._coordination.gather("mesh", content)
        if not found.keys() >= {*self._members}:
            self._wait_for_another_view()
        hosts = [split_address(self._config.worker_hosts[member])[0] for member in self._members]
        ports = [int(json.loads(found[member])[0]) for member in self._members]
        config = dataclasses.replace(
            self._config,
            worker_hosts=[host_and_port(*each) for each in zip(hosts, ports, strict=True)],
            rank=self._rank,
            ps_hosts=(),
        )
        parts = [str(self._view.number).encode(), *(found[member] for member in self._members)]
        return config, hashlib.sha256(b"\n".join(parts)).digest()

    def _log_problem(self, why: str) -> None:
        print(f"{self._config.name}: {why}", flush=True)

    def _leave_if_unreached(self, unreached: Collection[int]) -> None:
        """Waits until all members have tried to reach the others; this one may have to leave."""
        content = json.dumps([self._members[index] for index in sorted(unreached)]).encode()
        found = self._coordination.gather("mesh is there", content)
        lost = {worker: json.loads(found[worker]) for worker in found}
        left = leavers(lost, self._view.coordinator)
        if self._config.rank in left:
            pairs = {*lost[self._config.rank], *(a for a in lost if self._config.rank in lost[a])}
            names = [name_of(worker, self._config.worker_hosts) for worker in sorted(pairs)]
            print(
                f"{self._config.name} ends: it cannot connect to {', '.join(names)}; the others "
                "go on without it.",
                flush=True,
            )
            raise LeaveTrainingError(LOST_STATUS)
        if left:
            self._wait_for_another_view()

    def _wait_for_another_view(self) -> None:
        """Raises InterruptionError as soon as the coordinator asks for a new view."""
        while True:
            with self._coordination.changed:
                self._coordination.check()
                self._coordination.changed.wait(_POLL_SECS)


class ElasticMeshExchange(SocketExchange):
    """An exchange over the mesh of the current view."""

    def __init__(
        self, connection: ElasticMesh, local_nodes: int, kernels: GradientKernels, step: tf.Variable
    ) -> None:
        """Joins `local_nodes` nodes of each worker; for errors see base class.

        `nodes` returns the number of nodes in the view.
        """
        super().__init__(connection, local_nodes, kernels)
        self._connection, self._step = connection, step
        self._unsettled: list[tf.Tensor] = []  # of the step that is being traced
        self.owner = Owner(0, 1, 1)
        self._place = tf.Variable(self.owner, dtype=tf.int64, trainable=False)

    def begin_view(self, owner: Owner) -> None:
        """See base class; joins the processes of the view."""
        self._nodes.assign(owner.count * self.local_nodes)
        self._place.assign(owner)
        super().begin_view(owner)

    def share(self, rows: int) -> tuple[int, int]:
        """See base class: all rows, of which those of the others are zeros."""
        return 0, rows

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        largest = self.local_nodes * max_code, self.largest_sum(max_code)
        rows, planes = local.shape[0], plane_count(largest[1])
        sums = self._move_codes(
            local, f"{name}/scattered", MeshKind.SCATTER_CODES, rows, largest, [None, planes]
        )
        first, end = self._share_of_view(rows)
        whole = tf.pad(sums[: end - first], [[first, rows - end], [0, 0]])
        return tf.ensure_shape(whole, [rows, planes])

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        first, end = self._share_of_view(rows)
        own = tf.pad(share[first:end], [[0, self._largest_share(rows) - (end - first)], [0, 0]])
        largest, shape = (max_code, max_code), [rows, share.shape[1]]
        return self._move_codes(
            own, f"{name}/gathered", MeshKind.GATHER_CODES, rows, largest, shape
        )

    def _share_of_view(self, rows: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what `planes.share_of` does, among the members of the view: int64 scalars."""
        size, index = self._largest_share(rows), self._place.read_value()[0]
        return tf.minimum(index * size, rows), tf.minimum((index + 1) * size, rows)

    def _largest_share(self, rows: int) -> tf.Tensor:
        """Returns what `planes.largest_share` does, likewise."""
        block = SUM_BLOCK // GROUP
        return -(-rows // (self._place.read_value()[1] * block)) * block

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """See base class; a step that was given up ends before with an error."""
        graph = tf.compat.v1.get_default_graph()
        results = [each for each in self._unsettled if each.graph is graph]
        self._unsettled = []

        def end(step: np.ndarray) -> np.int32:
            self._connection.end_step(int(step))
            return np.int32(0)

        with tf.control_dependencies(results):
            ended = tf.numpy_function(end, [self._step.read_value()], tf.int32)
        with tf.control_dependencies([ended]):
            yield

    def _count_both(self, octets: tf.Tensor) -> None:
        """See base class."""
        super()._count_both(octets)
        if not tf.executing_eagerly():
            self._unsettled.append(octets)
