"""A ps: it admits workers, reads their pushes and sends the results."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import DecodeError

from terngrad import allocator
from terngrad.cluster.addresses import name_of
from terngrad.connect.calling import ps_name
from terngrad.connect.channel import Channel, ChannelEnd, Ending, Outbox
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import COORDINATION, EXCHANGE
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.streams import GRACE_SECS, Streams
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.answers import Arithmetic
from terngrad.exchange.parameter_server.server.service import Service, UnreadError
from terngrad.exchange.parameter_server.server.worker_registry import WorkerRegistry
from terngrad.service.figures import Figures
from terngrad.service.messages import LONGEST_PUSH, Header

_STREAM_THREADS = 2  # one reads, one sends
_LONGEST_BEAT_SECS = 0.5


class Server:
    """Serves the streams of the workers."""

    def __init__(
        self,
        config: ConnectConfig,
        arithmetic: Arithmetic,
        rules: Rules,
        log: Callable[[str], None] = print,
        max_bytes: int = 1 << 62,
    ) -> None:
        """Does not listen yet.

        Args:
          config: of this ps, with the time-out of `rules`.
          arithmetic: computes results; see `Arithmetic`.
          rules: which workers make a step.
          log: writes a line to the log.
          max_bytes: see `Aggregator`.
        """
        ps, servers, self._worker_hosts = config.rank, len(config.ps_hosts), config.worker_hosts
        self._name, self._log = ps_name(ps, config.ps_hosts), LogLimiter(log)
        self._service = Service(
            ps, self._worker_hosts, arithmetic, rules, servers, self._log, max_bytes
        )
        self._beat_secs = min(_LONGEST_BEAT_SECS, rules.timeout_secs / 4)
        self._timeout_secs = max(GRACE_SECS, rules.timeout_secs)
        self._stop = threading.Event()
        may_coordinate = ps == 0 or rules.coordinator_moves
        purposes = {EXCHANGE: self._exchange} | (
            {COORDINATION: self._connect_coordinator} if may_coordinate else {}
        )
        self._streams = Streams(
            config,
            purposes,
            self._log,
            longest=LONGEST_PUSH,
            threads=_STREAM_THREADS * len(purposes),
            rules=str(rules),
        )

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Streams.start`."""
        return self._streams.start(address)

    @property
    def registry(self) -> WorkerRegistry:
        """Which workers have an Exchange stream, and how the others left."""
        return self._service.registry

    @property
    def aggregator(self) -> Aggregator:
        """Combines the workers' pushes."""
        return self._service.aggregator

    @property
    def figures(self) -> Figures:
        """Counts of steps and bytes."""
        return self._service.figures

    @property
    def coordinator(self) -> Coordinator | None:
        """Decides which workers train together; None where it is another ps."""
        return self._service.coordinator

    @property
    def dropped(self) -> Mapping[int, int]:
        """Late gradients by worker; empty where another ps coordinates."""
        return coordinator.dropped if (coordinator := self.coordinator) else {}

    @property
    def idle_sessions(self) -> Mapping[int, int]:
        """See `Coordinator`; empty where another ps coordinates."""
        return coordinator.idle_sessions if (coordinator := self.coordinator) else {}

    @property
    def lost_ps(self) -> Sequence[int]:
        """See `Coordinator`; empty where another ps coordinates."""
        return coordinator.lost_ps if (coordinator := self.coordinator) else ()

    def wait(self, on_beat: Callable[[], None] = lambda: None) -> str | None:
        """Waits for the end of the run; calls `on_beat` regularly.

        Returns:
          "" if the run is done, else why it failed; None after `stop`.
        """
        freed = allocator.FreedMemory()
        while (outcome := self._service.outcome) is None:
            if self._stop.wait(self._beat_secs):
                return None
            on_beat()
            freed.give_back_if_fewer(self.registry.present)
            self._log.flush()
            if coordinator := self.coordinator:
                coordinator.watch()
        began = time.monotonic()
        if self._has_more_to_send:
            self._log(f"{outcome}; workers that have not connected yet are informed.")
        while (secs := time.monotonic() - began) < self._timeout_secs:
            is_needed = self.registry.present and secs < GRACE_SECS
            if not (is_needed or self._has_more_to_send):
                break
            if self._stop.wait(self._beat_secs):
                break
        return outcome

    @property
    def _has_more_to_send(self) -> bool:
        coordinator = self.coordinator
        return coordinator is not None and coordinator.has_more_to_send

    def stop(self) -> None:
        """Ends `wait`."""
        self._stop.set()

    def close(self) -> None:
        """Ends all streams."""
        self._streams.close()
        self._log.flush(is_end=True)

    def _exchange(self, worker: int, channel: Channel) -> Sequence[Callable[[], None]]:
        """See `streams.OpenStream`."""
        outbox = Outbox(channel)
        if not self._service.open_exchange(worker, outbox):
            raise self._streams.refuse_second(worker)
        stream = _Stream(channel, outbox)

        def send() -> None:
            outbox.send_all()
            why = ""
            if stream.error:  # logged here: a stream that was cut does not carry it to the worker
                why = self._streams.complain(channel, stream.error)
            self._service.close_exchange(worker, stream.last, stream.ending)
            channel.finish(Ending(ChannelEnd.REFUSED, why) if why else Ending(ChannelEnd.DONE))

        read = functools.partial(self._service.take, worker, outbox)
        return [send, lambda: self._read(worker, stream, read)]

    def _connect_coordinator(self, worker: int, channel: Channel) -> Sequence[Callable[[], None]]:
        """See `streams.OpenStream`."""
        outbox = Outbox(channel)
        if not self._service.open_coordination(worker, outbox):
            raise self._streams.refuse_second(worker)
        stream = _Stream(channel, outbox)

        def send() -> None:
            outbox.send_all()
            ending = None if self._stop.is_set() else stream.ending
            self._service.close_coordination(worker, ending, stream.silent_secs)
            if why := stream.error:
                why = self._streams.complain(channel, why)
            channel.finish(Ending(ChannelEnd.REFUSED, why) if why else Ending(ChannelEnd.DONE))

        receive = functools.partial(self._service.receive, worker)
        return [send, lambda: self._read(worker, stream, receive)]

    def _read(
        self, worker: int, stream: _Stream, take: Callable[[memoryview], Header | None]
    ) -> None:
        stream.read(take)
        if changed := stream.channel.changed:
            self._log(changed.between(self._name, name_of(worker, self._worker_hosts)))


class _Stream:
    """The reading half of a stream.

    Attributes:
      channel: that it reads.
      error: why reading stopped before the stream ended; "" if it did not.
      ending: how the stream ended, if the worker did not say goodbye.
      last: header of the worker's goodbye; None if there was none.
      silent_secs: time without a sign of the worker, if that ended the stream; otherwise 0.
    """

    def __init__(self, channel: Channel, outbox: Outbox) -> None:
        self.channel, self._outbox = channel, outbox
        self.error, self.ending = "", "died: its stream ended"
        self.last: Header | None = None
        self.silent_secs = 0.0

    def read(self, take: Callable[[memoryview], Header | None]) -> None:
        """Reads messages until the goodbye or the end of the stream; then the writing half ends."""
        try:
            for message in self.channel:
                if last := take(message):
                    self.last = last
                    break
        except UnreadError as error:  # the worker would not read a last message, either
            self._object(error)
            self._outbox.cut()
        except (ValueError, DecodeError) as error:  # invalid frames, pushes and reports
            self._object(error)
        except Exception as error:  # not retried: the step would fail again
            self.error = f"this ps failed: {error!r}"
            self.ending = f"was refused: {self.error}"
            with contextlib.suppress(OSError):  # such as a full disk: then it is not logged
                traceback.print_exc()
        finally:
            if (found := self.channel.ending) and found.end is ChannelEnd.SILENT:
                self.ending, self.silent_secs = f"is silent: {found.why}", self.channel.silence_secs
            self._outbox.close()

    def _object(self, error: Exception) -> None:
        """Notes that the worker sent something invalid."""
        self.error = str(error)
        self.ending = f"sent an invalid message: {error}"
