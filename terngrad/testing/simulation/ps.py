"""A simulated ps, which may be killed, stopped and started again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from terngrad.connect.introduction import COORDINATION
from terngrad.connect.streams import GRACE_SECS
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.server.service import Service
from terngrad.testing.simulation.streams import Clock, Stream, StreamEnd

KEPT_STEPS = 1  # so few that results which are never dropped break the limit of memory
_BEAT_SECS = 0.5
_START_SECS = 1.0  # shortest time between the starts of two processes
_BEGAN = 1_000_000.0  # seconds since 1970 at which a simulation begins


class SimulatedPs:
    """A simulated ps.

    Attributes:
      hosts: hosts of the workers.
      service: its service; None while there is no process.
      streams: open streams.
      outcome: outcome of its last process; None if that was killed or still runs.
      first_outcome: that of any of its processes, even of one that was killed before it ended.
      is_stopped: whether the process is stopped.
      was_reached: whether a worker has opened a stream to this process.
      log: log lines of all its processes.
    """

    def __init__(self, index: int, servers: int, workers: int, rules: Rules, clock: Clock) -> None:
        """Starts no process."""
        self.index, self._servers, self._rules, self._clock = index, servers, rules, clock
        self.hosts = [f"host{i}:1" for i in range(workers)]
        self.service: Service | None = None
        self.streams: list[Stream] = []
        self.outcome: str | None = None
        self.first_outcome: str | None = None
        self.is_stopped = False
        self.was_reached = False
        self.log: list[str] = []
        self._polled_at = self._ended_at = 0.0
        self._starts = 0

    def start(self) -> None:
        """Starts a process, which knows nothing about earlier ones."""
        self._starts += 1
        began = _BEGAN + self._starts * _START_SECS
        self.service = Service(
            self.index,
            self.hosts,
            _Arithmetic(),
            self._rules,
            self._servers,
            log=self.log.append,
            clock=self._clock,
            wall_clock=lambda: began + self._clock(),
            kept_steps=KEPT_STEPS,
        )
        self.outcome = None
        self.was_reached = False

    def kill(self, kept: int = 0) -> None:
        """Ends the process; `kept` of its last messages still arrive on each stream."""
        self._note_outcome()
        self.service = None
        for stream in self.streams:
            stream.lose(0, kept)
        self.streams = []

    def accept(self, worker: int, purpose: str) -> Stream | None:
        """Opens a stream; None if no process accepts it or the worker has one already."""
        if self.service is None or self.is_stopped:
            return None
        stream = Stream(worker, purpose)
        is_coordination = purpose == COORDINATION
        accept = self.service.open_coordination if is_coordination else self.service.open_exchange
        if not accept(worker, stream):
            return None
        self.streams.append(stream)
        self.was_reached = True
        return stream

    def take(self, stream: Stream) -> None:
        """Handles the next message of a stream."""
        message = stream.up.waiting.popleft()
        if message is StreamEnd.END:
            self._close(stream)
        elif stream.purpose == COORDINATION:
            self.service.receive(stream.worker, message)
        elif last := self.service.take(stream.worker, stream, message):
            stream.last = last
            self._close(stream)

    def poll(self) -> None:
        """Acts on time-outs."""
        if self.service is None or self._clock() - self._polled_at < _BEAT_SECS:
            return
        self._polled_at = self._clock()
        if self.service.outcome is None:
            self._ended_at = self._clock()
            if self.service.coordinator:
                self.service.coordinator.watch()
        self._note_outcome()
        waited = self._clock() - self._ended_at
        if self.service.outcome is not None and (
            not self.service.registry.present or waited >= GRACE_SECS
        ):
            self.outcome = self.service.outcome
            self.kill(1 << 30)

    def _note_outcome(self) -> None:
        if self.service is not None and self.first_outcome is None:
            self.first_outcome = self.service.outcome

    def _close(self, stream: Stream) -> None:
        self.streams.remove(stream)
        if stream.purpose == COORDINATION:
            self.service.close_coordination(stream.worker, "died: its stream ended")
        else:
            self.service.close_exchange(stream.worker, stream.last, "died: its stream ended")
        stream.down.end()


class _Arithmetic:
    """Adds integers of 32 bits, whatever the kind of the operation; see `operations_of`."""

    def open(self, operation: Operation, piece: int, payload: memoryview) -> memoryview:
        del operation, piece
        return payload

    def reduce(self, operation: Operation, parts: Sequence[memoryview]) -> memoryview:
        return _result(operation, sum(_integers(part) for part in parts))

    def leave_out(self, operation: Operation, total: memoryview, part: memoryview) -> memoryview:
        own = _integers(part)
        return _result(operation, _integers(total)[: own.size] - own)

    def others(self, operation: Operation, parts: Sequence[memoryview]) -> list[memoryview]:
        total = self.reduce(operation, parts)
        return [self.leave_out(operation, total, part) for part in parts]

    def payload(self, operation: Operation, result: memoryview) -> memoryview:
        del operation
        return result


def _integers(part: memoryview) -> np.ndarray:
    return np.frombuffer(part, np.int32)


def _result(operation: Operation, numbers: np.ndarray) -> memoryview:
    """Returns a result of the operation's size that begins with these numbers."""
    result = np.zeros(operation.items * operation.result_bytes // numbers.itemsize, np.int32)
    result[: numbers.size] = numbers
    return memoryview(result.tobytes())
