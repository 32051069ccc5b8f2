"""Streams whose messages arrive when somebody says so, and links over them."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable

from terngrad.cluster.channel import MembershipError
from terngrad.service.messages import Header
from terngrad.service.network import LinkEvents
from terngrad.testing.simulation.clock import Clock


class End(enum.Enum):
    """The last thing that arrives on either way of a stream."""

    END = "end"


class Way:
    """One way of a stream: messages keep their order, and are lost only at its end.

    Attributes:
      waiting: what has not arrived.
      is_closed: nothing more can be sent.
    """

    def __init__(self) -> None:
        """Nothing was sent."""
        self.waiting: collections.deque[bytes | End] = collections.deque()
        self.is_closed = False

    def send(self, message: bytes) -> None:
        """Sends, unless this way was ended."""
        if not self.is_closed:
            self.waiting.append(message)

    def end(self) -> None:
        """Ends this way after what was sent."""
        if not self.is_closed:
            self.is_closed = True
            self.waiting.append(End.END)

    def lose(self, kept: int) -> None:
        """Ends this way after so many of the messages that have not arrived."""
        kept = min(kept, len(self.waiting) - self.is_closed)
        self.waiting = collections.deque([*self.waiting][:kept])
        self.waiting.append(End.END)
        self.is_closed = True


class Stream:
    """A stream of a worker to a ps; to the ps' service it is the outbox.

    Attributes:
      worker: whose it is.
      method: "Meet" or "Exchange".
      up: to the ps.
      down: to the worker.
      last: header of the frame with which the worker said that it ends.
      lost_goodbye: the stream broke before all arrived that the worker said when it ended.
    """

    def __init__(self, worker: int, method: str) -> None:
        """Open."""
        self.worker, self.method = worker, method
        self.up, self.down = Way(), Way()
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
        return sum(len(message) for message in self.down.waiting if message is not End.END)

    def lose(self, kept_up: int, kept_down: int) -> None:
        """The stream breaks; so many messages of each way arrive before that is noticed."""
        self.lost_goodbye |= self.up.is_closed
        self.up.lose(kept_up)
        self.down.lose(kept_down)


class SimulatedLink:
    """A `Link` that opens streams with a function.

    Attributes:
      ps: index of that to which it leads.
      stream: the one that is open; None while there is none.
      lost_goodbye: see `Stream`, once it is noticed.
    """

    def __init__(
        self,
        ps: int,
        connect: Callable[[], Stream | None],
        events: LinkEvents,
        timeout_secs: float,
        clock: Clock,
    ) -> None:
        """Opens the first stream.

        Args:
          ps: index of that to which it leads.
          connect: returns a new stream, or None if the ps cannot be reached now.
          events: what is told to the user of this link.
          timeout_secs: to open another stream in.
          clock: of the simulation.

        Raises:
          MembershipError: the ps cannot be reached.
        """
        self.ps, self._connect, self._events = ps, connect, events
        self._timeout_secs, self._clock = timeout_secs, clock
        self._over, self._lost_at, self.lost_goodbye = False, 0.0, False
        self.stream = connect()
        if self.stream is None:
            raise MembershipError(f"ps {ps} cannot be reached")

    @property
    def is_up(self) -> bool:
        """See `Link`."""
        return self.stream is not None

    @property
    def unsent(self) -> int:
        """See `Link`."""
        return 0

    def start(self) -> None:
        """See `Link`."""

    def send(self, message: bytes) -> None:
        """See `Link`."""
        if self.stream is not None and not self._over:
            self.stream.up.send(message)

    def wait_until_up(self, secs: float) -> bool:
        """See `Link`."""
        del secs
        return self.is_up

    def end(self, last_message: bytes | None = None) -> None:
        """See `Link`."""
        if last_message is not None:
            self.send(last_message)
        self._over = True
        if self.stream is not None:
            self.stream.lost_goodbye |= self.stream.up.is_closed
            self.stream.up.end()

    def join(self, timeout_secs: float) -> None:
        """See `Link`."""

    def take(self) -> None:
        """What arrives next is taken."""
        message = self.stream.down.waiting.popleft()
        if message is not End.END:
            self._events.on_message(message)
            return
        self.lost_goodbye |= self.stream.lost_goodbye
        self.stream, self._lost_at = None, self._clock()
        if not self._over:
            self._events.on_break()

    def look(self) -> None:
        """Looks whether another stream can be opened in the place of one that broke."""
        if self._over or self.stream is not None:
            return
        if (stream := self._connect()) is not None:
            self.stream = stream
            self._events.on_open()
        elif self._clock() - self._lost_at > self._timeout_secs:
            self._over = True
            self._events.on_loss(f"ps {self.ps} did not come back")
