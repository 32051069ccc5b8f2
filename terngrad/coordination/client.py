"""A worker's side of the coordination: what it reports, and what it waits for."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError

from terngrad.cluster.errors import FinishedError, MembershipError
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.channel import FrameError
from terngrad.connect.link import ChannelLink
from terngrad.coordination import groups
from terngrad.service.messages import Order, Report, Values, View

_PART_BYTES = 1 << 19
_MAX_UNSENT = 64  # parts of a state
# Values that are given again on a new stream. The others may wait for the last ones only: each has
# given its value of a name, so it has those of the names before.
_KEPT_VALUES = 64

_T = TypeVar("_T")


class InterruptionError(Exception):
    """The step is abandoned: the processes must agree on a state before they continue."""


@dataclasses.dataclass(frozen=True)
class Events:
    """Calls from a thread that reads the coordinator's orders, while `changed` is held.

    Attributes:
      on_view: called with each new view.
      on_report_request: called when the view becomes invalid and this worker must report its
        state.
      on_go: called with a step and its contributors.
      on_lost_ps: called with the ps that the others do without.
      on_open: called when another stream replaces a broken one.
      on_end: called with the reason for which the training ends, while `changed` is not held.
    """

    on_view: Callable[[View], None]
    on_report_request: Callable[[], None]
    on_go: Callable[[int, tuple[int, ...]], None]
    on_lost_ps: Callable[[tuple[int, ...]], None]
    on_open: Callable[[], None]
    on_end: Callable[[str], None]


class CoordinatorClient:
    """A worker's stream to the coordinator; any thread may call.

    Calls named `ask_...` do not wait: they return a function that finds the answer, or None until
    it arrives.

    Attributes:
      changed: held during each change.
      ended: why the training ends; "" while it continues.
      saver: the worker that saves when the training fails; None if the coordinator chose none.
      view: the last view received; its number is 0 before the first.
    """

    def __init__(self, events: Events) -> None:
        """Starts without a link."""
        self._events = events
        self._link: ChannelLink | None = None
        self._progress = ProcessProgress()
        self.changed = threading.Condition()
        self.ended = ""
        self.saver: int | None = None
        self.view = View()
        self._finished = self._must_report = False
        self._state_report: Report | None = None  # not answered yet
        self._own_values: dict[str, Report] = {}
        self._values: dict[str, tuple[int, dict[int, bytes]]] = {}  # by name: round, values
        self._parts: list[bytes] = []  # of a donor's state

    def use(self, link: ChannelLink, progress: ProcessProgress) -> None:
        """Starts a link and sends over it; `progress` is the progress of this worker."""
        self._link, self._progress = link, progress
        link.start()

    def move(self, link: ChannelLink) -> None:
        """Moves to another coordinator, over a link that is not started yet."""
        with self.changed:
            left, self._link = self._link, link
            self._must_report = True
            self.changed.notify_all()
        left.end()
        link.start()

    def send_progress(self) -> None:
        """Reports the progress of this worker."""
        progress, report = self._progress, Report()
        report.progress.is_stepping = progress.batches is not None
        report.progress.batches = progress.batches or 0
        operations = progress.operations
        report.progress.operations = operations.count
        report.progress.operation = operations.last
        report.progress.alike = operations.alike
        self._send(report)

    def gather(self, name: str, content: bytes, round_: int | None = None) -> Mapping[int, bytes]:
        """Sends a value; waits for the values of all workers and returns them.

        A worker that joins after the others have received the values gets the same ones, perhaps
        without its own.

        Args:
          name: name of the value.
          content: see `messages.longest_value`.
          round_: number of the call with this name, the same on all workers. None = one round for
            each view, which excludes values of processes that are gone.

        Raises:
          InterruptionError: all workers must report their states; call again after that.
          MembershipError: the training ends, or the others have made later calls.
        """
        self.send_progress()  # first: it is compared with that of workers that have left
        return self._wait_for(self.ask_values(name, content, round_))

    def ask_values(
        self, name: str, content: bytes, round_: int | None = None
    ) -> Callable[[], Mapping[int, bytes] | None]:
        """Sends a value and asks for those of all workers; see `gather`."""
        with self.changed:
            number = self.view.number if round_ is None else round_
            own = Report()
            own.value.name, own.value.content, own.value.round = name, content, number
            self._values.pop(name, None)
            self._own_values.pop(name, None)
            self._own_values[name] = own  # the last one
            if len(self._own_values) > _KEPT_VALUES:
                oldest = next(iter(self._own_values))
                del self._own_values[oldest]
                self._values.pop(oldest, None)
            self._send(own)
        return lambda: self._values_of(name, number, is_of_view=round_ is None)

    def next_view(self, steps: int, *, is_live: bool) -> View:
        """Reports the state of this worker; waits for the next view and returns it.

        Args:
          steps: steps that its state has made.
          is_live: whether it has the state of this training, not only of a checkpoint.

        Raises:
          MembershipError: the training ends.
        """
        self.send_progress()
        return self._wait_for(self.ask_view(steps, is_live=is_live))

    def ask_view(self, steps: int, *, is_live: bool) -> Callable[[], View | None]:
        """Reports the state of this worker and asks for the next view; see `next_view`."""
        with self.changed:
            report, before = Report(), self.view
            report.state_report.steps, report.state_report.is_live = steps, is_live
            report.state_report.view, report.state_report.members = before.number, before.members
            report.state_report.coordinator = before.coordinator
            self._state_report, self._must_report = report, False
            self._send(report)
        return lambda: self.view if self.view.number > before.number else None

    def give_state(self, view: View, contents: Iterable[memoryview]) -> None:
        """Sends this worker's state to the view's receivers."""
        for part in itertools.chain(_parts(contents), [b""]):
            report = Report()
            report.state.view, report.state.content = view.number, part
            while self._link.unsent > _MAX_UNSENT:
                with self.changed:
                    self.check()
                    self.changed.wait(0.01)
            self._send(report)

    def take_state(self) -> bytes:
        """Waits for the state that the donor of the last view sends, and returns it.

        Raises:
          InterruptionError: the donor is lost, or the view is no longer valid.
          MembershipError: the training ends.
        """
        return self._wait_for(self.found_state)

    def found_state(self) -> bytes | None:
        """Returns the state that the donor of the last view sent; None until it is complete."""
        if not self._parts or self._parts[-1]:
            return None
        content, self._parts = b"".join(self._parts), []
        return content

    def confirm_state(self, view: View) -> None:
        """Reports that this worker has the state that the donor of a view sent."""
        self._send(Report(has_state=view.number))

    def check(self) -> None:
        """Raises an error if there is nothing to wait for; call it before each wait.

        Raises:
          InterruptionError: the view is no longer valid: this worker must report its state.
          MembershipError: the training ends.
        """
        if self._finished:
            raise FinishedError("the training is done; there is nothing left to join")
        if self.ended:
            raise MembershipError(self.ended)
        if self._must_report and self.view.number and not self._state_report:
            raise InterruptionError

    def ready(self, step: int) -> None:
        """Reports that this worker has the gradients of a step."""
        self._send(Report(ready=step))

    def report_lost(self, servers: Collection[int]) -> None:
        """Reports which ps this worker does without."""
        self._send(Report(lost_ps=groups.pack(servers)))

    def report_ended(self, servers: Collection[int], in_view: Collection[int]) -> None:
        """Reports ps at whose addresses nobody listens.

        Args:
          servers: these ps.
          in_view: ps that ended a stream in the last view, after which nobody listened there.
        """
        self._send(Report(ended_ps=groups.pack(servers)))
        self._send(Report(ended_in_view=groups.pack(in_view)))

    def require_in_next_step(self) -> None:
        """Makes the next steps wait for this worker."""
        self._send(Report(is_required_in_next_step=True))

    def fail(self, reason: str, *, is_shared: bool = False) -> None:
        """Ends the training of all workers; see `SharedError`."""
        self._send(Report(failed=reason, shared=is_shared))

    def leave_others(self) -> None:
        """Reports that this worker ends, and that the others go on."""
        self._send(Report(leaves=True))

    def leave(self) -> None:
        """Reports that this worker is done, and how far it came."""
        self.send_progress()
        self._send(Report(bye=True))

    def end(self, timeout_secs: float) -> None:
        """Ends this half of the stream; waits until the coordinator has read all messages."""
        if self._link:
            self._link.end()
            self._link.join(timeout_secs)

    def lose(self, why: str) -> None:
        """Makes all waits fail, because a process is lost."""
        with self.changed:
            self.ended = self.ended or why
            self.changed.notify_all()

    def broken(self) -> None:
        """Notes that the stream broke: a new view is needed."""
        with self.changed:
            self._must_report = True
            self.changed.notify_all()

    def opened(self) -> None:
        """Repeats this worker's reports on a new stream: the coordinator may be a new process."""
        with self.changed:
            self._events.on_open()
            for own in self._own_values.values():
                self._send(own)
            if self._state_report:
                self._must_report = False
                self._send(self._state_report)

    def handle(self, message: bytes, is_current: Callable[[], bool] = lambda: True) -> None:
        """Handles an order, if `is_current` returns that its sender still coordinates.

        Raises:
          FrameError: it is not an order.
        """
        try:
            order = Order.FromString(message)
        except DecodeError:
            raise FrameError("it is not a valid Order") from None
        with self.changed:
            if not is_current():
                return
            self._handle(order)
            self.changed.notify_all()
        if order.WhichOneof("what") == "end":
            self._events.on_end(order.end)

    def _handle(self, order: Order) -> None:
        what = order.WhichOneof("what")
        if what == "view":
            self.view, self._state_report, self._parts = order.view, None, []
            self._must_report = False
            self._events.on_view(order.view)
        elif what == "report_state":
            self._must_report = True
            self._events.on_report_request()
        elif what == "go":
            self._events.on_go(order.go.step, groups.unpack(order.go.contributors))
        elif what == "values":
            self._take_values(order.values)
        elif what == "state" and order.state.view == self.view.number:
            self._parts.append(order.state.content)
        elif what == "lost_ps":
            self._events.on_lost_ps(groups.unpack(order.lost_ps))
        elif what == "finished":
            self._finished = True
        elif what == "end":
            self.ended = order.end
            self.saver = order.saver if order.HasField("saver") else None

    def _take_values(self, given: Values) -> None:
        """Notes the values of all workers, unless this worker now waits for another round.

        An abandoned round is answered late, when the worker for which it waited leaves.

        Raises:
          FrameError: it has not one value of each worker that it names.
        """
        if len(given.workers) != len(given.contents):
            raise FrameError("it has not one value of each worker that it names")
        own = self._own_values.get(given.name)
        if own is not None and own.value.round == given.round:
            contents = dict(zip(given.workers, given.contents, strict=True))
            self._values[given.name] = given.round, contents

    def _values_of(self, name: str, round_: int, *, is_of_view: bool) -> Mapping[int, bytes] | None:
        found, values = self._values.get(name, (None, None))
        if found != round_:
            return None
        if not values:
            if is_of_view and round_:
                return None  # a later view has begun; its order arrives next
            self.check()  # the others may repeat this call in another view
            raise MembershipError(
                f"the other workers have made later calls than this one ({name}): this worker was "
                "started again, and their program does not let it join"
            )
        return values

    def _wait_for(self, find: Callable[[], _T | None]) -> _T:
        with self.changed:
            while (found := find()) is None:
                self.check()
                self.changed.wait()
            return found

    def _send(self, report: Report) -> None:
        self._link.send(report.SerializeToString())


def _parts(contents: Iterable[memoryview]) -> Iterator[bytes]:
    for content in contents:
        for start in range(0, content.nbytes, _PART_BYTES):
            yield bytes(content[start : start + _PART_BYTES])
