"""A ps over gRPC: it admits workers, reads their pushes and sends the results."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence

import grpc
from google.protobuf.message import DecodeError

from terngrad.cluster.channel import PortError, name_of
from terngrad.cluster.encrypted import ChangedError
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.aggregator import Aggregator
from terngrad.exchange.parameter_server.server.answers import Arithmetic
from terngrad.exchange.parameter_server.server.attendance import Attendance
from terngrad.exchange.parameter_server.server.service import Service, UnreadError
from terngrad.service import data_listener, memory
from terngrad.service.calls import ps_name
from terngrad.service.figures import Figures
from terngrad.service.gate import GRACE_SECS, Gate, Listener
from terngrad.service.log_limiter import LogLimiter
from terngrad.service.messages import Header
from terngrad.service.security import Tls
from terngrad.service.streams import WELCOME, Outbox

_LONGEST_BEAT_SECS = 0.5


class Server:
    """The gRPC server of a ps."""

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        arithmetic: Arithmetic,
        rules: Rules,
        tls: Tls | None = None,
        tell: Callable[[str], None] = print,
        most_bytes: int = 1 << 62,
        secret: bytes = b"",
    ) -> None:
        """Does not listen yet.

        Args:
          ps: index of this ps in `ps_hosts`.
          ps_hosts: "host:port" of each ps; workers must have the same list.
          worker_hosts: "host:port" of each worker; workers must have the same list.
          arithmetic: computes results; see `Reduction`.
          rules: which workers make a step; a connection that is silent for the time-out is lost.
          tls: certificates; None = plain text, and any process may connect.
          tell: writes a line to the log.
          most_bytes: see `Aggregator`.
          secret: that workers must have, too; b"" = none.
        """
        self._ps, self._name, self._worker_hosts = ps, ps_name(ps, ps_hosts), worker_hosts
        self._log = LogLimiter(tell)
        self._gate = Gate(ps, ps_hosts, worker_hosts, self._log, tls, str(rules), secret)
        self._admit, self._refuse = self._gate.admit, self._gate.refuse
        self._service = Service(
            ps, worker_hosts, arithmetic, rules, len(ps_hosts), self._log, most_bytes
        )
        self._beat_secs = min(_LONGEST_BEAT_SECS, rules.timeout_secs / 4)
        self._timeout_secs = max(GRACE_SECS, rules.timeout_secs)
        self._stop = threading.Event()
        self._data = data_listener.DataListener(
            tls, rules.timeout_secs, len(worker_hosts), self._log
        )
        methods = {"Exchange": self._exchange, "Meet": self._meet}
        self._listener = Listener(
            self._gate,
            len(worker_hosts),
            rules.timeout_secs,
            tls,
            methods,
            self._data.most_connections,
        )

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""
        self._data.start(address.rpartition(":")[0].strip("[]"))
        try:
            return self._listener.start(address)
        except PortError:
            self._data.close()
            raise

    @property
    def attendance(self) -> Attendance:
        """Which workers have an Exchange stream, and how the others left."""
        return self._service.attendance

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
        """Decides which workers train together; None except on ps 0."""
        return self._service.coordinator

    @property
    def dropped(self) -> Mapping[int, int]:
        """Late gradients by worker; empty except on ps 0."""
        return self.coordinator.dropped if self.coordinator else {}

    @property
    def idle_visits(self) -> Mapping[int, int]:
        """See `Coordinator`; empty except on ps 0."""
        return self.coordinator.idle_visits if self.coordinator else {}

    @property
    def lost_ps(self) -> Sequence[int]:
        """See `Coordinator`; empty except on ps 0."""
        return self.coordinator.lost_ps if self.coordinator else ()

    def wait(self, on_beat: Callable[[], None] = lambda: None) -> str | None:
        """Waits for the end of the run; calls `on_beat` regularly.

        Returns:
          "" if the run is done, else why it failed; None after `stop`.
        """
        returning = memory.Returning()
        while (outcome := self._service.outcome) is None:
            if self._stop.wait(self._beat_secs):
                return None
            on_beat()
            returning.look(self.attendance.present)
            self._log.flush()
            if self.coordinator:
                self.coordinator.watch()
        began = time.monotonic()
        if self._has_more_to_tell:
            self._log(f"{outcome}; workers that have not come yet are told.")
        while (secs := time.monotonic() - began) < self._timeout_secs:
            is_needed = self.attendance.present and secs < GRACE_SECS
            if not (is_needed or self._has_more_to_tell):
                break
            if self._stop.wait(self._beat_secs):
                break
        return outcome

    @property
    def _has_more_to_tell(self) -> bool:
        return self.coordinator is not None and self.coordinator.has_more_to_tell

    def stop(self) -> None:
        """Ends `wait`."""
        self._stop.set()

    def close(self) -> None:
        """Ends all streams."""
        self._listener.close()
        self._data.close()
        self._log.flush(is_end=True)

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker, outbox = self._admit(context), Outbox(context.cancel)
        if not self._service.open_exchange(worker, outbox):
            self._gate.refuse_second(context, worker)
        stream, why = _Stream(outbox, context), ""
        offer = self._data.offer(lambda error: self._note_change(worker, error))
        try:
            context.add_callback(offer.close)
            context.send_initial_metadata((*WELCOME, *offer.metadata))
            take = functools.partial(self._service.take, worker, outbox)
            stream.start(offer.received(requests, outbox), take)
            yield from outbox
        finally:
            offer.close()
            if stream.error:  # logged here: a stream that was cut does not carry it to the worker
                why = self._gate.complain(context, stream.error)
            self._service.close_exchange(worker, stream.last, stream.ending)
        if why:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)

    def _note_change(self, worker: int, error: ChangedError) -> None:
        self._log(error.between(self._name, name_of(worker, self._worker_hosts)))

    def _meet(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator:
        worker, outbox = self._admit(context), Outbox(context.cancel)
        if self.coordinator is None:
            self._refuse(context, f"Meet is a method of ps 0 only; this is ps {self._ps}")
        if not self._service.open_meeting(worker, outbox):
            self._gate.refuse_second(context, worker)
        stream = _Stream(outbox, context)
        try:
            context.send_initial_metadata(WELCOME)
            stream.start(requests, functools.partial(self._service.hear, worker))
            yield from outbox
        finally:
            self._service.close_meeting(worker, None if self._stop.is_set() else stream.ending)
        if stream.error:
            self._refuse(context, stream.error)


class _Stream:
    """The reading half of a stream.

    Attributes:
      error: why reading stopped before the stream ended; "" if it did not.
      ending: how the stream ended, if the worker did not say goodbye.
      last: header of the worker's goodbye; None if there was none.
    """

    def __init__(self, outbox: Outbox, context: grpc.ServicerContext) -> None:
        self.error, self.ending = "", "died: its stream ended"
        self.last: Header | None = None
        self._outbox = outbox
        context.add_callback(outbox.close)

    def start(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        """Reads messages until the goodbye or the end of the stream; then the writing half ends."""
        threading.Thread(target=self._read, args=(requests, take), daemon=True).start()

    def _read(self, requests: Iterator[bytes], take: Callable[[bytes], Header | None]) -> None:
        try:
            for message in requests:
                if last := take(message):
                    self.last = last
                    break
        except UnreadError as error:  # the worker would not read a last message, either
            self._object(error)
            self._outbox.cut()
        except (ValueError, DecodeError) as error:  # invalid frames, pushes and reports
            self._object(error)
        except grpc.RpcError:  # the worker is lost
            pass
        except Exception as error:  # not retried: the step would fail again
            self.error = f"this ps failed: {error!r}"
            self.ending = f"was refused: {self.error}"
            with contextlib.suppress(OSError):  # such as a full disk: then it is not logged
                traceback.print_exc()
        finally:
            self._outbox.close()

    def _object(self, error: Exception) -> None:
        """Notes that the worker sent something invalid."""
        self.error = str(error)
        self.ending = f"sent an invalid message: {error}"
