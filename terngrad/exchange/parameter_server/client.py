"""A worker's streams to all ps: pushes pieces, and puts results together."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import grpc
import numpy as np

from terngrad.exchange.parameter_server.calls import open_channel, open_stream, ps_name, why_ended
from terngrad.exchange.parameter_server.meeting import Meeting
from terngrad.exchange.parameter_server.messages import Header, join_frame, split_frame
from terngrad.exchange.parameter_server.operations import Kind, Operation, Shares
from terngrad.exchange.parameter_server.security import Tls
from terngrad.exchange.parameter_server.streams import Outbox, hello

_END_SECS = 5.0


@dataclasses.dataclass
class _Declared:
    """An operation and where it stands.

    Attributes:
      operation: what it is.
      servers: index of the ps of each piece.
      deliver: takes the bytes of a result; `cancel`: tells that there will be none.
      step: whose result is awaited; -1 = none.
      result: what of it has come.
      missing: pieces that have not.
    """

    operation: Operation
    servers: list[int]
    deliver: Callable[[np.ndarray], None]
    cancel: Callable[[], None]
    step: int = -1
    result: np.ndarray | None = None
    missing: set[int] = dataclasses.field(default_factory=set)


class Client:
    """The connection to all ps of a training.

    Attributes:
      rank: index of this worker.
      size: workers.
      failure: why the connection cannot be used any more; "" while it can.
    """

    def __init__(
        self,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        timeout_secs: float,
        tls: Tls | None = None,
    ) -> None:
        """Reaches all ps, which may start later.

        Raises:
          MembershipError: names the ps that cannot be reached or that refuses this worker.
        """
        self.rank, self.size = rank, len(worker_hosts)
        self.failure = ""
        self._ps_hosts = ps_hosts
        self._on_failure: Callable[[str], None] = lambda text: None
        self._declared: list[_Declared] = []
        self._shares = Shares(len(ps_hosts))
        self._lock = threading.Lock()
        self._over = False
        self._channels = [open_channel(host, tls, timeout_secs) for host in ps_hosts]
        introductions = [hello(rank, i, ps_hosts, worker_hosts) for i in range(len(ps_hosts))]
        try:
            call, outbox = open_stream(self._channels[0], "Meet", introductions[0], timeout_secs)
            streams = [
                open_stream(channel, "Exchange", introduction, timeout_secs)
                for channel, introduction in zip(self._channels, introductions, strict=True)
            ]
        except BaseException:
            self._close_channels()
            raise
        self.meeting = Meeting(call, outbox, rank, worker_hosts, lambda: self._lose(0, call))
        self._outboxes: list[Outbox] = [outbox for _, outbox in streams]
        self._readers = [
            threading.Thread(target=self._read, args=(ps, stream), daemon=True)
            for ps, (stream, _) in enumerate(streams)
        ]
        for reader in self._readers:
            reader.start()

    def watch(self, on_failure: Callable[[str], None]) -> None:
        """Calls `on_failure`, from any thread, with the reason when a ps is lost."""
        self._on_failure = on_failure
        if self.failure:
            on_failure(self.failure)

    def declare(
        self,
        name: str,
        kind: Kind,
        items: int,
        local_nodes: int,
        deliver: Callable[[np.ndarray], None],
        cancel: Callable[[], None],
    ) -> int:
        """Tells all ps of a new operation; returns its index.

        Args:
          name: see `Operation`; all workers declare the same operations in the same order.
          kind: see there.
          items: see there.
          local_nodes: see there.
          deliver: called, from a thread, with the bytes of each result.
          cancel: called once if there will be no more.
        """
        with self._lock:
            index = len(self._declared)
            operation = Operation(index, name, kind, items, local_nodes, self.size)
            servers = self._shares.assign(operation)
            self._declared.append(_Declared(operation, servers, deliver, cancel))
            frame = join_frame(Header(declared=operation.message()))
            for outbox in self._outboxes:
                outbox.put(frame)
        if self.failure:
            cancel()
        return index

    def push(self, index: int, step: int, content: np.ndarray) -> None:
        """Sends this worker's part of an operation; the result is delivered later.

        Args:
          index: of the operation.
          step: larger at each push of the operation.
          content: of any type and shape, with as many bytes as the operation says.
        """
        declared = self._declared[index]
        operation = declared.operation
        view = np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
        declared.result = np.empty(operation.items * operation.result_bytes, np.uint8)
        declared.missing = set(range(operation.pieces))
        declared.step = step
        pushes, size = operation.pushes(self.rank), operation.pushed_bytes
        for piece, server in enumerate(declared.servers):
            first, end = operation.piece_items(piece) if pushes else (0, 0)
            header = Header(step=step, operation=index, piece=piece)
            self._outboxes[server].put(join_frame(header, view[first * size : end * size]))

    def close(self, *, is_done: bool) -> None:
        """Ends all streams; the ps then know whether all is well with this worker."""
        self._over = True
        if not self.failure:
            self.meeting.close(_END_SECS)
        if is_done and not self.failure:
            for outbox in self._outboxes:
                outbox.put(join_frame(Header(bye=True)))
                outbox.close()
            for reader in self._readers:
                reader.join(_END_SECS)
        self._close_channels()

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()

    def _read(self, ps: int, call: grpc.Call) -> None:
        try:
            for message in call:
                self._take(message)
        except grpc.RpcError:
            pass
        self._lose(ps, call)

    def _take(self, message: bytes) -> None:
        header, payload = split_frame(message)
        declared = self._declared[header.operation]
        if header.step != declared.step or header.piece not in declared.missing:
            return  # it was asked for twice
        first, _ = declared.operation.piece_items(header.piece)
        start = first * declared.operation.result_bytes
        declared.result[start : start + payload.nbytes] = payload
        with self._lock:  # pieces come from several ps
            declared.missing.discard(header.piece)
            is_whole = not declared.missing
        if is_whole:
            declared.deliver(declared.result)

    def _lose(self, ps: int, call: grpc.Call) -> None:
        with self._lock:
            if self._over or self.failure:
                return
            self.failure = why_ended(call, ps_name(ps, self._ps_hosts))
        self._on_failure(self.failure)
        for declared in self._declared:
            declared.cancel()
