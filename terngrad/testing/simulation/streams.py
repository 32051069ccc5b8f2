"""Simulated streams, whose messages arrive when the simulation takes them, and their links."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable

from terngrad.cluster.errors import MembershipError
from terngrad.connect.link import LinkEvents
from terngrad.service.messages import Header


class Clock:
    """A clock that counts the seconds of a simulation; `now` sets it."""

    def __init__(self) -> None:
        """Starts at 0."""
        self.now = 0.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


class StreamEnd(enum.Enum):
    """The end of one direction of a stream, which arrives after all messages."""

    END = "end"


class Direction:
    """One direction of a stream: messages keep their order, and only the last ones can be lost.

    Attributes:
      waiting: messages that have not arrived.
      is_closed: whether no more can be sent.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self.waiting: collections.deque[bytes | StreamEnd] = collections.deque()
        self.is_closed = False

    def send(self, message: bytes) -> None:
        """Sends a message unless this direction is closed."""
        if not self.is_closed:
            self.waiting.append(message)

    def end(self) -> None:
        """Closes this direction after the messages sent so far."""
        if not self.is_closed:
            self.is_closed = True
            self.waiting.append(StreamEnd.END)

    def lose(self, kept: int) -> None:
        """Closes this direction; only the first `kept` of the waiting messages still arrive."""
        kept = min(kept, len(self.waiting) - self.is_closed)
        self.waiting = collections.deque([*self.waiting][:kept])
        self.waiting.append(StreamEnd.END)
        self.is_closed = True


class Stream:
    """A stream from a worker to a ps; for the ps' service it is the outbox.

    Attributes:
      worker: index of the worker.
      purpose: `COORDINATION` or `EXCHANGE`.
      up: direction to the ps.
      down: direction to the worker.
      last: header of the worker's goodbye.
      was_silent: whether it ended because nothing arrived.
      lost_goodbye: whether the stream broke before the worker's goodbye arrived.
    """

    def __init__(self, worker: int, purpose: str) -> None:
        """Opens the stream."""
        self.worker, self.purpose = worker, purpose
        self.up, self.down = Direction(), Direction()
        self.was_silent = False
        self.last: Header | None = None
        self.lost_goodbye = False

    def put(self, message: bytes) -> None:
        """See `Outbox`."""
        self.down.send(message)

    def cut(self) -> None:
        """See `Outbox`."""
        self.lose(0, 0)

    def __len__(self) -> int:
        """See `Outbox`."""
        return len(self.down.waiting)

    @property
    def waiting_bytes(self) -> int:
        """See `Outbox`."""
        return sum(len(message) for message in self.down.waiting if message is not StreamEnd.END)

    def lose(self, kept_up: int, kept_down: int) -> None:
        """Breaks the stream; `kept_up` and `kept_down` messages still arrive."""
        self.lost_goodbye |= self.up.is_closed
        self.up.lose(kept_up)
        self.down.lose(kept_down)


class SimulatedLink:
    """A `ChannelLink` that opens streams with a function.

    Attributes:
      ps: index of the ps.
      stream: the open stream; None while there is none.
      was_ended: see `ChannelLink`.
      lost_goodbye: see `Stream`; set when the worker notices.
    """

    def __init__(
        self,
        ps: int,
        connect: Callable[[], Stream | None],
        events: LinkEvents,
        timeout_secs: float,
        clock: Clock,
        *,
        waits: bool = True,
        nobody_listens: Callable[[], bool] = lambda: False,
        return_secs: float | None = None,
    ) -> None:
        """Opens the first stream.

        Args:
          ps: index of the ps.
          connect: returns a new stream, or None if the ps cannot be reached now.
          events: calls to the user of this link.
          timeout_secs: time limit for opening another stream.
          clock: clock of the simulation.
          waits: see `SocketNetwork.open`.
          nobody_listens: see `ChannelLink`.
          return_secs: the time limit where nobody listens; None = timeout_secs.

        Raises:
          MembershipError: the ps cannot be reached.
        """
        self.ps, self._connect, self._events = ps, connect, events
        self._timeout_secs, self._clock = timeout_secs, clock
        self.was_ended = False
        self._nobody_listens, self._return_secs = nobody_listens, return_secs or timeout_secs
        self._over, self._lost_at, self.lost_goodbye = False, clock(), False
        self.stream = connect() if waits else None
        if waits and self.stream is None:
            raise MembershipError(f"ps {ps} cannot be reached")

    @property
    def is_up(self) -> bool:
        """See `ChannelLink`."""
        return self.stream is not None

    @property
    def nobody_listens(self) -> bool:
        """See `ChannelLink`."""
        return self.stream is None and self._nobody_listens()

    @property
    def unsent(self) -> int:
        """See `ChannelLink`."""
        return 0

    def start(self) -> None:
        """See `ChannelLink`."""

    def send(self, message: bytes) -> None:
        """See `ChannelLink`."""
        if self.stream is not None and not self._over:
            self.stream.up.send(message)

    def wait_until_up(self, secs: float) -> bool:
        """See `ChannelLink`."""
        del secs
        return self.is_up

    def end(self, last_message: bytes | None = None) -> None:
        """See `ChannelLink`."""
        if last_message is not None:
            self.send(last_message)
        self._over = True
        if self.stream is not None:
            self.stream.lost_goodbye |= self.stream.up.is_closed
            self.stream.up.end()

    def join(self, timeout_secs: float) -> None:
        """See `ChannelLink`."""

    def take(self) -> None:
        """Handles the next message."""
        message = self.stream.down.waiting.popleft()
        if message is not StreamEnd.END:
            self._events.on_message(message)
            return
        self.lost_goodbye |= self.stream.lost_goodbye
        self.was_ended = not self.stream.was_silent
        self.stream, self._lost_at = None, self._clock()
        if not self._over:
            self._events.on_break()

    def poll(self) -> None:
        """Tries to open another stream if the last one broke."""
        if self._over or self.stream is not None:
            return
        if (stream := self._connect()) is not None:
            self.stream = stream
            self._events.on_open()
        elif self._clock() - self._lost_at > self._limit_secs:
            self._lost_at = self._clock()
            self._over = not self._events.on_loss(f"ps {self.ps} did not come back")

    @property
    def _limit_secs(self) -> float:
        return self._return_secs if self._nobody_listens() else self._timeout_secs
