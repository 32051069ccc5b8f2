"""A worker's side of what ps 0 coordinates: values that all see, views, and states handed over."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from terngrad.cluster.pulse import Pulse
from terngrad.exchange.parameter_server.worker.conversation import Conversation
from terngrad.service.messages import Order, Report, View
from terngrad.service.network import Link

_PART_BYTES = 1 << 19
_MOST_UNSENT = 64  # parts of a state

_T = TypeVar("_T")


class Meeting:
    """Waits for what ps 0 says; any thread may call.

    Attributes:
      conversation: what was said; to be used while `changed` is held.
      changed: held where any of it changes.
    """

    def __init__(
        self,
        on_view: Callable[[View], None],
        on_freeze: Callable[[], None],
        on_go: Callable[[int, tuple[int, ...]], None],
        on_end: Callable[[str], None],
    ) -> None:
        """Needs a link.

        Args:
          on_view: called, from a thread as all of these, when there is a new view.
          on_freeze: called when the view does not hold any more.
          on_go: called with a step and its contributors.
          on_end: called with the reason why the training ends.
        """
        self._on_end = on_end
        self._link: Link | None = None
        self.changed = threading.Condition()
        self.conversation = Conversation(self._send, on_view, on_freeze, on_go)

    @property
    def saver(self) -> int | None:
        """The worker that saves when the training ends for a reason; None if nobody says so."""
        return self.conversation.saver

    def use(self, link: Link) -> None:
        """Talks over a link."""
        self._link = link
        link.start()

    def tell_progress(self, pulse: Pulse) -> None:
        """Says how far this worker is."""
        report = Report()
        report.progress.is_stepping = pulse.batches is not None
        report.progress.batches = pulse.batches or 0
        self._send(report)

    def gather(self, name: str, content: bytes, round_: int | None = None) -> Mapping[int, bytes]:
        """Gives a value, and returns those of all workers when they are there.

        A worker that joins when others have seen theirs gets the same, perhaps without its own.

        Args:
          name: of the value.
          content: at most 64 KB.
          round_: counts the calls of this name, the same on all workers; None = what was given in
            this view counts, and nothing that processes gave which are gone.

        Raises:
          InterruptionError: the workers are to say where they stand; ask again after that.
          MembershipError: the training ends.
        """
        with self.changed:
            asked = self.conversation.give(name, content, round_)
            return self._wait_for(lambda: self.conversation.values(name, asked))

    def stand(self, steps: int, *, is_live: bool) -> View:
        """Says where this worker stands, and returns the next view.

        Args:
          steps: it has made.
          is_live: it has made them in this training.

        Raises:
          MembershipError: the training ends.
        """
        with self.changed:
            before = self.conversation.stand(steps, is_live=is_live)
            return self._wait_for(lambda: self.conversation.view_after(before))

    def give_state(self, view: View, contents: Iterable[memoryview]) -> None:
        """Gives this worker's state to the view's receivers."""
        for part in itertools.chain(_parts(contents), [b""]):
            report = Report()
            report.state.view, report.state.content = view.number, part
            while self._link.unsent > _MOST_UNSENT:
                with self.changed:
                    self.conversation.check()
                    self.changed.wait(0.01)
            self._send(report)

    def take_state(self) -> bytes:
        """The state that the donor of the last view gives.

        Raises:
          InterruptionError: the donor is lost, or the view does not hold any more.
          MembershipError: the training ends.
        """
        with self.changed:
            return self._wait_for(self.conversation.take_state)

    def ready(self, step: int) -> None:
        """Says that there are gradients of a step."""
        self._send(Report(ready=step))

    def insist(self) -> None:
        """Has this worker take part in a step soon."""
        self._send(Report(insists=True))

    def fail(self, reason: str) -> None:
        """Ends the training for all."""
        self._send(Report(failed=reason))

    def leave(self) -> None:
        """Says that all is done here."""
        self._send(Report(bye=True))

    def end(self, timeout_secs: float) -> None:
        """Ends this half of the stream, and waits until all that was said has arrived."""
        if self._link:
            self._link.end()
            self._link.join(timeout_secs)

    def lose(self, why: str) -> None:
        """Ends what waits, because ps 0 or another ps is lost."""
        with self.changed:
            self.conversation.lose(why)
            self.changed.notify_all()

    def broken(self) -> None:
        """The link is: a new view is needed."""
        with self.changed:
            self.conversation.broken()
            self.changed.notify_all()

    def opened(self) -> None:
        """The link is open again, perhaps to a ps that knows nothing."""
        with self.changed:
            self.conversation.opened()

    def take(self, message: bytes) -> None:
        """Takes an order."""
        order = Order.FromString(message)
        with self.changed:
            self.conversation.take(order)
            self.changed.notify_all()
        if order.WhichOneof("what") == "end":
            self._on_end(order.end)

    def _wait_for(self, find: Callable[[], _T | None]) -> _T:
        while (found := find()) is None:
            self.conversation.check()
            self.changed.wait()
        return found

    def _send(self, report: Report) -> None:
        self._link.send(report.SerializeToString())


def _parts(contents: Iterable[memoryview]) -> Iterator[bytes]:
    for content in contents:
        for start in range(0, content.nbytes, _PART_BYTES):
            yield bytes(content[start : start + _PART_BYTES])
