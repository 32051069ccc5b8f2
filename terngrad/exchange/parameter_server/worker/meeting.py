"""A worker's calls to ps 0: gathered values, views, and the transfer of a state."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from terngrad.cluster.pulse import Pulse
from terngrad.coordination import groups
from terngrad.exchange.parameter_server.worker.conversation import Conversation
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.service.messages import Order, Report, View
from terngrad.service.network import Link

_PART_BYTES = 1 << 19
_MOST_UNSENT = 64  # parts of a state

_T = TypeVar("_T")


class Meeting:
    """A `Conversation` with ps 0 whose calls wait for its answers; any thread may call.

    Attributes:
      conversation: the messages so far; use it only while `changed` is held.
      changed: held during each change of the conversation.
    """

    def __init__(
        self,
        on_view: Callable[[View], None],
        on_freeze: Callable[[], None],
        on_go: Callable[[int, tuple[int, ...]], None],
        servers: Servers,
        on_end: Callable[[str], None],
    ) -> None:
        """Starts without a link. A thread of the link calls all functions.

        Args:
          on_view: called with each new view.
          on_freeze: called when the view becomes invalid.
          on_go: called with a step and its contributors.
          servers: which ps this worker reaches; it learns which ones the others do without.
          on_end: called with the reason for which the training ends.
        """
        self._on_end = on_end
        self._link: Link | None = None
        self._pulse = Pulse()
        self.changed = threading.Condition()
        self.conversation = Conversation(self._send, on_view, on_freeze, on_go, servers)

    @property
    def saver(self) -> int | None:
        """The worker that saves when the training fails; None if ps 0 did not choose one."""
        return self.conversation.saver

    def use(self, link: Link, pulse: Pulse) -> None:
        """Starts a link and sends over it; `pulse` is the progress of this worker."""
        self._link, self._pulse = link, pulse
        link.start()

    def tell_progress(self) -> None:
        """Reports the progress of this worker."""
        pulse, report = self._pulse, Report()
        report.progress.is_stepping = pulse.batches is not None
        report.progress.batches = pulse.batches or 0
        begun = pulse.begun
        report.progress.begun, report.progress.operation = begun.count, begun.last
        report.progress.alike = begun.alike
        self._send(report)

    def gather(self, name: str, content: bytes, round_: int | None = None) -> Mapping[int, bytes]:
        """Sends a value; waits for the values of all workers and returns them.

        A worker that joins after the others have received the values gets the same ones, perhaps
        without its own.

        Args:
          name: name of the value.
          content: at most 64 KB.
          round_: number of the call with this name, the same on all workers. None = one round for
            each view, which excludes values of processes that are gone.

        Raises:
          InterruptionError: all workers must report their standing; call again after that.
          MembershipError: the training ends.
        """
        self.tell_progress()  # first: ps 0 compares it with that of workers that have left
        with self.changed:
            asked = self.conversation.give(name, content, round_)
            return self._wait_for(lambda: self.conversation.values(name, asked))

    def stand(self, steps: int, *, is_live: bool) -> View:
        """Reports this worker's standing; waits for the next view and returns it.

        Args:
          steps: steps that its state has made.
          is_live: whether it has the state of this training, not only of a checkpoint.

        Raises:
          MembershipError: the training ends.
        """
        self.tell_progress()
        with self.changed:
            before = self.conversation.stand(steps, is_live=is_live)
            return self._wait_for(lambda: self.conversation.view_after(before))

    def give_state(self, view: View, contents: Iterable[memoryview]) -> None:
        """Sends this worker's state to the view's receivers."""
        for part in itertools.chain(_parts(contents), [b""]):
            report = Report()
            report.state.view, report.state.content = view.number, part
            while self._link.unsent > _MOST_UNSENT:
                with self.changed:
                    self.conversation.check()
                    self.changed.wait(0.01)
            self._send(report)

    def take_state(self) -> bytes:
        """Waits for the state that the donor of the last view sends, and returns it.

        Raises:
          InterruptionError: the donor is lost, or the view is no longer valid.
          MembershipError: the training ends.
        """
        with self.changed:
            return self._wait_for(self.conversation.take_state)

    def ready(self, step: int) -> None:
        """Reports that this worker has the gradients of a step."""
        self._send(Report(ready=step))

    def tell_lost(self, servers: Collection[int]) -> None:
        """Reports which ps this worker does without."""
        self._send(Report(lost_ps=groups.pack(servers)))

    def insist(self) -> None:
        """Makes the next steps wait for this worker."""
        self._send(Report(insists=True))

    def fail(self, reason: str, *, is_shared: bool = False) -> None:
        """Ends the training of all workers; see `SharedError`."""
        self._send(Report(failed=reason, shared=is_shared))

    def leave(self) -> None:
        """Reports that this worker is done, and how far it came."""
        self.tell_progress()
        self._send(Report(bye=True))

    def end(self, timeout_secs: float) -> None:
        """Ends this half of the stream; waits until ps 0 has read all messages."""
        if self._link:
            self._link.end()
            self._link.join(timeout_secs)

    def lose(self, why: str) -> None:
        """Makes all waits fail, because a ps is lost."""
        with self.changed:
            self.conversation.lose(why)
            self.changed.notify_all()

    def broken(self) -> None:
        """Notes that the stream broke: a new view is needed."""
        with self.changed:
            self.conversation.broken()
            self.changed.notify_all()

    def opened(self) -> None:
        """Repeats this worker's reports on a new stream: the ps may have been restarted."""
        with self.changed:
            self.conversation.opened()

    def take(self, message: bytes) -> None:
        """Handles an order."""
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
