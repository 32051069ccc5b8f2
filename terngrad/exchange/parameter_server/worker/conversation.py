"""The messages between a worker and ps 0, and what follows from them; nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from terngrad.cluster.channel import FinishedError, MembershipError
from terngrad.coordination import groups
from terngrad.exchange.connection import InterruptionError
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.service.messages import Order, Report, Values, View

_NO_VIEW = View()


class Conversation:
    """A worker's half of its Meet stream; the caller holds a lock.

    Attributes:
      ended: why the training ends; "" while it continues.
      saver: the worker that then saves; None if ps 0 did not choose one.
      view: the last view received; its number is 0 before the first.
    """

    def __init__(
        self,
        send: Callable[[Report], None],
        on_view: Callable[[View], None],
        on_freeze: Callable[[], None],
        on_go: Callable[[int, tuple[int, ...]], None],
        servers: Servers,
    ) -> None:
        """Starts without messages.

        Args:
          send: sends a report to ps 0 if a stream is open; must not wait.
          on_view: called with each new view.
          on_freeze: called when the view becomes invalid.
          on_go: called with a step and its contributors.
          servers: which ps this worker reaches.
        """
        self._send, self._servers = send, servers
        self._on_view, self._on_freeze, self._on_go = on_view, on_freeze, on_go
        self.ended = ""
        self.saver: int | None = None
        self.view = _NO_VIEW
        self._finished = False
        self._is_frozen = False
        self._standing: Report | None = None  # not answered yet
        self._own_values: dict[str, Report] = {}
        self._values: dict[str, tuple[int, dict[int, bytes]]] = {}  # by name: round, values
        self._parts: list[bytes] = []

    def give(self, name: str, content: bytes, round_: int | None = None) -> int:
        """Sends a value; returns its round, which is the view's number if none is given."""
        round_ = self.view.number if round_ is None else round_
        own = Report()
        own.value.name, own.value.content, own.value.round = name, content, round_
        self._own_values[name] = own
        self._values.pop(name, None)
        self._send(own)
        return round_

    def values(self, name: str, round_: int) -> Mapping[int, bytes] | None:
        """Returns the values of all workers in a round; None until they arrive."""
        found, values = self._values.get(name, (None, None))
        return values if found == round_ else None

    def stand(self, steps: int, *, is_live: bool) -> int:
        """Reports this worker's standing; returns the number of its last view."""
        report = Report()
        report.standing.steps, report.standing.is_live = steps, is_live
        report.standing.view, report.standing.members = self.view.number, self.view.members
        self._standing, self._is_frozen = report, False
        self._send(report)
        return self.view.number

    def view_after(self, number: int) -> View | None:
        """Returns the view that followed one; None until it arrives."""
        return self.view if self.view.number > number else None

    def take_state(self) -> bytes | None:
        """Returns the state that the donor of the last view sent; None until it is complete."""
        if not self._parts or self._parts[-1]:
            return None
        content, self._parts = b"".join(self._parts), []
        return content

    def check(self) -> None:
        """Checks that waiting makes sense; call it before each wait.

        Raises:
          InterruptionError: the view is no longer valid: this worker must report its standing.
          MembershipError: the training ends.
        """
        if self._finished:
            raise FinishedError("the training is done; there is nothing left to join")
        if self.ended:
            raise MembershipError(self.ended)
        if self._is_frozen and self.view.number and not self._standing:
            raise InterruptionError

    def lose(self, why: str) -> None:
        """Makes all waits fail, because a ps is lost."""
        self.ended = self.ended or why

    def broken(self) -> None:
        """Notes that the stream broke: a new view is needed."""
        self._is_frozen = True

    def opened(self) -> None:
        """Repeats this worker's reports on a new stream: the ps may have been restarted."""
        self._servers.tell()
        for own in self._own_values.values():
            self._send(own)
        if self._standing:
            self._is_frozen = False
            self._send(self._standing)

    def take(self, order: Order) -> None:
        """Handles an order."""
        what = order.WhichOneof("what")
        if what == "view":
            self.view, self._standing, self._parts = order.view, None, []
            self._is_frozen = False
            self._on_view(order.view)
        elif what == "freeze":
            self._is_frozen = True
            self._on_freeze()
        elif what == "go":
            self._on_go(order.go.step, groups.unpack(order.go.contributors))
        elif what == "values":
            self._take_values(order.values)
        elif what == "state" and order.state.view == self.view.number:
            self._parts.append(order.state.content)
        elif what == "lost_ps":
            self._servers.use_all_but(groups.unpack(order.lost_ps))
        elif what == "finished":
            self._finished = True
        elif what == "end":
            self.ended = order.end
            self.saver = order.saver if order.HasField("saver") else None

    def _take_values(self, given: Values) -> None:
        """Notes the values of all workers, unless this worker now waits for another round.

        An abandoned round is answered late, when the worker for which it waited leaves.
        """
        own = self._own_values.get(given.name)
        if own is not None and own.value.round == given.round:
            contents = dict(zip(given.workers, given.contents, strict=True))
            self._values[given.name] = given.round, contents
