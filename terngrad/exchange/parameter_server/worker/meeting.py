"""A worker's side of what ps 0 coordinates: values that all see, views, and states handed over."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from terngrad.cluster.channel import FinishedError, MembershipError
from terngrad.cluster.pulse import Pulse
from terngrad.exchange.connection import InterruptionError
from terngrad.exchange.parameter_server import groups
from terngrad.service.link import Link
from terngrad.service.messages import Order, Report, Values, View

_PART_BYTES = 1 << 19
_MOST_UNSENT = 64  # parts of a state
_NO_VIEW = View()


class Meeting:
    """What this worker and ps 0 say to each other.

    Attributes:
      ended: why the training ends; "" while it goes on.
      saver: the worker that then saves; None if nobody says so.
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
        self._on = {"view": on_view, "freeze": on_freeze, "go": on_go, "end": on_end}
        self.ended = ""
        self.saver: int | None = None
        self._finished = False
        self._link: Link | None = None
        self._over = threading.Event()
        self.changed = threading.Condition()
        self._view = _NO_VIEW
        self._is_frozen = False
        self._standing: Report | None = None  # that was not answered yet
        self._own_values: dict[str, Report] = {}
        self._values: dict[str, tuple[int, dict[int, bytes]]] = {}  # with the turn
        self._parts: list[bytes] = []

    def use(self, link: Link, pulse: Pulse, beat_secs: float) -> None:
        """Talks over a link, and says there every now and then how far this worker is."""
        self._link = link
        link.start()

        def tell() -> None:
            while not self._over.wait(beat_secs):
                report = Report()
                report.progress.is_stepping = pulse.batches is not None
                report.progress.batches = pulse.batches or 0
                self._send(report)

        threading.Thread(target=tell, daemon=True).start()

    def gather(self, name: str, content: bytes, turn: int | None = None) -> Mapping[int, bytes]:
        """Gives a value, and returns those of all workers when they are there.

        Who comes when others have seen theirs gets the same, perhaps without its own.

        Args:
          name: of the value.
          content: at most 64 KB.
          turn: counts the calls of this name, the same on all workers; None = what was given in
            this view counts, and nothing that processes gave which are gone.

        Raises:
          InterruptionError: the workers are to say where they stand; ask again after that.
          MembershipError: the training ends.
        """
        with self.changed:
            turn = self._view.number if turn is None else turn
            own = Report()
            own.value.name, own.value.content, own.value.round = name, content, turn
            self._own_values[name] = own
            self._values.pop(name, None)
            self._send(own)
            self._wait_for(lambda: self._values.get(name, (-1, {}))[0] == turn)
            return self._values[name][1]

    def stand(self, steps: int, *, is_live: bool) -> View:
        """Says where this worker stands, and returns the next view.

        Args:
          steps: it has made.
          is_live: it has made them in this training.

        Raises:
          MembershipError: the training ends.
        """
        with self.changed:
            before = self._view.number
            report = Report()
            report.standing.steps, report.standing.is_live = steps, is_live
            report.standing.view, report.standing.members = before, self._view.members
            self._standing, self._is_frozen = report, False
            self._send(report)
            self._wait_for(lambda: self._view.number > before)
            return self._view

    def give_state(self, view: View, contents: Iterable[memoryview]) -> None:
        """Gives this worker's state to the view's receivers."""
        for part in itertools.chain(_parts(contents), [b""]):
            report = Report()
            report.state.view, report.state.content = view.number, part
            while self._link.unsent > _MOST_UNSENT:
                with self.changed:
                    self._check()
                    self.changed.wait(0.01)
            self._send(report)

    def take_state(self) -> bytes:
        """The state that the donor of the last view gives.

        Raises:
          InterruptionError: the donor is lost, or the view does not hold any more.
          MembershipError: the training ends.
        """
        with self.changed:
            self._wait_for(lambda: self._parts and not self._parts[-1])
            content, self._parts = b"".join(self._parts), []
            return content

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
        self._over.set()
        if self._link:
            self._link.end()
            self._link.join(timeout_secs)

    def lose(self, why: str) -> None:
        """Ends what waits, because ps 0 or another ps is lost."""
        with self.changed:
            self.ended = self.ended or why
            self.changed.notify_all()

    def broken(self) -> None:
        """The link is: a new view is needed."""
        with self.changed:
            self._is_frozen = True
            self.changed.notify_all()

    def opened(self) -> None:
        """The link is open again, perhaps to a ps that knows nothing."""
        with self.changed:
            for own in self._own_values.values():
                self._send(own)
            if self._standing:
                self._is_frozen = False
                self._send(self._standing)

    def take(self, message: bytes) -> None:
        """Takes an order."""
        order = Order.FromString(message)
        what = order.WhichOneof("what")
        with self.changed:
            if what == "view":
                self._view, self._standing, self._parts = order.view, None, []
                self._is_frozen = False
                self._on["view"](order.view)
            elif what == "freeze":
                self._is_frozen = True
                self._on["freeze"]()
            elif what == "go":
                self._on["go"](order.go.step, groups.unpack(order.go.contributors))
            elif what == "values":
                self._take_values(order.values)
            elif what == "state" and order.state.view == self._view.number:
                self._parts.append(order.state.content)
            elif what == "finished":
                self._finished = True
            elif what == "end":
                self.ended = order.end
                self.saver = order.saver if order.HasField("saver") else None
            self.changed.notify_all()
        if what == "end":
            self._on["end"](order.end)

    def _take_values(self, given: Values) -> None:
        """Notes what all gave, unless it is of another round than the last one asked for.

        One that was given up is answered late, when a worker leaves for which it waited.
        """
        own = self._own_values.get(given.name)
        if own is not None and own.value.round == given.round:
            contents = dict(zip(given.workers, given.contents, strict=True))
            self._values[given.name] = given.round, contents

    def _wait_for(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._check()
            self.changed.wait()

    def _check(self) -> None:
        if self._finished:
            raise FinishedError("the training is done; there is nothing left to join")
        if self.ended:
            raise MembershipError(self.ended)
        if self._is_frozen and self._view.number and not self._standing:
            raise InterruptionError

    def _send(self, report: Report) -> None:
        self._link.send(report.SerializeToString())


def _parts(contents: Iterable[memoryview]) -> Iterator[bytes]:
    for content in contents:
        for start in range(0, content.nbytes, _PART_BYTES):
            yield bytes(content[start : start + _PART_BYTES])
