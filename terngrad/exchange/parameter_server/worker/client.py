"""A worker's streams to all ps: pushes pieces, and puts results together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from terngrad.cluster.pulse import Pulse
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.operations import Operation, Shares
from terngrad.exchange.parameter_server.worker.decisions import Decisions
from terngrad.exchange.parameter_server.worker.declared import Declared, Deliver
from terngrad.exchange.parameter_server.worker.meeting import Meeting
from terngrad.service.calls import open_channel
from terngrad.service.link import Link
from terngrad.service.messages import Header, View, join_frame, split_frame
from terngrad.service.security import Tls
from terngrad.service.streams import hello

_END_SECS = 5.0
_LONGEST_BEAT_SECS = 1.0
_BEATS = 4  # at least, in the time-out
_LOOK_SECS = 0.2

_Waiting = tuple[Declared, memoryview]


class Client:
    """The connection to all ps of a training.

    Attributes:
      rank: index of this worker.
      size: workers.
      meeting: what ps 0 coordinates.
      failure: why the connection cannot be used any more; "" while it can.
    """

    def __init__(
        self,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        timeout_secs: float,
        tls: Tls | None = None,
        pulse: Pulse | None = None,
        rules: str = "",
    ) -> None:
        """Reaches all ps, which may start later.

        Args:
          ps_hosts: "host:port" of each ps.
          worker_hosts: of each worker, as the ps know them.
          rank: index of this worker.
          timeout_secs: for which a ps may be away.
          tls: None = in plain text.
          pulse: how far this worker is.
          rules: those of `coordinator.Rules` that it expects, in words; "" = any.

        Raises:
          MembershipError: names the ps that cannot be reached or that refuses this worker.
        """
        self.rank, self.size = rank, len(worker_hosts)
        self.failure = ""
        self._on_failure: Callable[[str], None] = lambda text: None
        self._declared: list[Declared] = []
        self._shares = Shares(len(ps_hosts))
        self._lock = threading.RLock()
        self._over = False
        self._view = View()
        self._interrupted = True  # until there is a view
        self._channels = [open_channel(host, tls, timeout_secs) for host in ps_hosts]
        self._introductions = [
            hello(rank, i, ps_hosts, worker_hosts, rules) for i in range(len(ps_hosts))
        ]
        self._timeout_secs = timeout_secs
        self._links: list[Link] = []
        self.meeting = Meeting(self._install, self._interrupt, self._go, self._lose)
        self._decisions: Decisions[_Waiting] = Decisions(rank, self.meeting.ready)
        try:
            self._meet(pulse or Pulse())
            for ps in range(len(ps_hosts)):
                self._links.append(self._connect(ps))
        except BaseException:
            self.close(is_done=False)
            raise
        for link in self._links:
            link.start()

    def watch(self, on_failure: Callable[[str], None]) -> None:
        """Calls `on_failure`, from any thread, with the reason when the training must end."""
        self._on_failure = on_failure
        if self.failure:
            on_failure(self.failure)

    def wait_for_servers(self) -> None:
        """Returns when there is a stream to each ps, or there will be none."""
        for link in self._links:
            while not self.failure and not link.wait_until_up(_LOOK_SECS):
                pass

    @property
    def interrupted(self) -> bool:
        """Whether no step can be made until there is a new view."""
        with self._lock:
            return self._interrupted

    @property
    def leads(self) -> bool:
        """Whether this worker is the first of the view, or of those who are left at the end."""
        if (saver := self.meeting.saver) is not None:
            return saver == self.rank
        with self._lock:
            return groups.unpack(self._view.members)[:1] == (self.rank,)

    @property
    def spares(self) -> bool:
        """Whether a step needs fewer than all members of the view."""
        with self._lock:
            return self._decisions.spares

    def follows(self, step: int) -> bool:
        """See `Decisions`."""
        with self._lock:
            return self._decisions.follows(step)

    def declare(self, operation: Operation, deliver: Deliver, cancel: Callable[[], None]) -> int:
        """Tells all ps of a new operation; returns its index.

        Args:
          operation: of all workers, who declare a family's operations in the same order.
          deliver: called, from a thread, with each result.
          cancel: called once if there will be no more.
        """
        with self._lock:
            index = len(self._declared)
            servers = self._shares.assign(operation)
            declared = Declared(index, operation, servers, deliver, cancel)
            self._declared.append(declared)
            for link in self._links:
                link.send(_declaration(declared))
        if self.failure:
            cancel()
        return index

    def push(self, index: int, step: int, content: np.ndarray) -> None:
        """Sends this worker's part of an operation; the result is delivered later.

        In a step that was given up, zeros are delivered: `commit` then tells.

        Args:
          index: of the operation.
          step: larger at each push of the operation in a view.
          content: of any type and shape, with as many bytes as the operation says.
        """
        declared = self._declared[index]
        view = np.ascontiguousarray(content).reshape(-1).view(np.uint8).data
        with self._lock:
            is_forgotten = self._decisions.is_forgotten(step)
        if is_forgotten:
            self._interrupt()  # this worker is too far behind: it needs another's state
        with self._lock:
            is_given_up = self._interrupted
            if not is_given_up:
                declared.expect(step, self._view.number)
                contributors = declared.contributors = self._contributors(step)
                if contributors is None:
                    self._decisions.hold(step, (declared, view))
                else:
                    self._decisions.tell_late(step)
        if is_given_up:
            declared.deliver_nothing()
        elif contributors is not None:
            self._send_pieces(declared, step, contributors, view)

    def commit(self, step: int) -> bool:
        """Whether the results of a step are what they seem, and may change the parameters."""
        with self._lock:
            self._decisions.made(step)
            return not self._interrupted

    def takes_part(self, step: int) -> bool:
        """Whether this worker's part is in the results of a step that is not committed yet."""
        with self._lock:
            contributors = self._contributors(step)
        return contributors is not None and self.rank in groups.unpack(contributors)

    def insist(self) -> None:
        """Has this worker's gradients count soon, where steps are made without some."""
        if self.spares:
            self.meeting.insist()

    def close(self, *, is_done: bool, why: str = "") -> None:
        """Ends all streams; the ps then know whether all is well with this worker.

        Args:
          is_done: it ends in order.
          why: not all is well, for this reason; only if it is done.
        """
        self._over = True
        bye = join_frame(Header(bye=True, failed=why[:1000])) if is_done else None
        for link in self._links:
            link.end(bye)
        deadline = time.monotonic() + _END_SECS
        self.meeting.end(_END_SECS)
        if is_done:
            for link in self._links:
                link.join(max(0.0, deadline - time.monotonic()))
        self._close_channels()

    def _meet(self, pulse: Pulse) -> None:
        meeting = self.meeting
        link = Link(
            self._channels[0],
            "Meet",
            self._introductions[0],
            self._timeout_secs,
            lock=meeting.changed,
            on_message=meeting.take,
            on_break=lambda: (self._interrupt(), meeting.broken()),
            on_open=meeting.opened,
            on_loss=self._lose,
            on_refusal=self._lose,
        )
        meeting.use(link, pulse, min(_LONGEST_BEAT_SECS, self._timeout_secs / _BEATS))

    def _connect(self, ps: int) -> Link:
        return Link(
            self._channels[ps],
            "Exchange",
            self._introductions[ps],
            self._timeout_secs,
            lock=self._lock,
            on_message=self._take,
            on_break=self._interrupt,
            on_open=lambda: self._declare_again(ps),
            on_loss=self._lose,
            on_refusal=self._refused,
        )

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()

    def _declare_again(self, ps: int) -> None:
        with self._lock:
            for declared in self._declared:
                self._links[ps].send(_declaration(declared))

    def _contributors(self, step: int) -> bytes | None:
        """Who takes part, as far as it is known."""
        if not self._decisions.spares:
            return self._view.members
        decided = self._decisions.contributors(step)
        return None if decided is None else groups.pack(decided)

    def _go(self, step: int, contributors: tuple[int, ...]) -> None:
        with self._lock:
            held = self._decisions.decide(step, contributors)
        packed = groups.pack(contributors)
        for declared, content in held:
            declared.contributors = packed
            self._send_pieces(declared, step, packed, content)

    def _send_pieces(
        self, declared: Declared, step: int, contributors: bytes, content: memoryview
    ) -> None:
        operation, size = declared.operation, declared.operation.pushed_bytes
        pushes = self.rank in groups.unpack(contributors)
        for piece, server in enumerate(declared.servers):
            first, end = operation.piece_items(piece) if pushes else (0, 0)
            header = Header(
                step=step,
                operation=declared.index,
                piece=piece,
                view=declared.view,
                contributors=contributors,
            )
            frame = join_frame(header, content[first * size : end * size])
            with self._lock:  # not between a new stream and the declarations on it
                self._links[server].send(frame)

    def _take(self, message: bytes) -> None:
        header, payload = split_frame(message)
        if header.operation >= len(self._declared):
            return  # an earlier process of this worker asked for it
        declared = self._declared[header.operation]
        operation = declared.operation
        first, end = operation.piece_items(header.piece)
        start, size = first * operation.result_bytes, (end - first) * operation.result_bytes
        with self._lock:
            result = declared.result if declared.awaits(header) else None
        if result is None:
            return  # it was asked for twice, or of a step that was given up
        if header.gone or payload.nbytes != size:
            self._interrupt()  # this worker is too far behind: it needs another's state
            return
        if header.contributors != declared.contributors:
            others, own = map(groups.unpack, (header.contributors, declared.contributors))
            self._refused(
                f"{operation.name}: a result of step {header.step} is of workers {list(others)}; "
                f"expected are {list(own)}"
            )
            return
        result[start : start + size] = payload
        with self._lock:  # pieces come from several ps
            if not declared.awaits(header):
                return
            declared.missing.discard(header.piece)
            is_whole = not declared.missing
        if is_whole:
            declared.deliver(result, len(groups.unpack(header.contributors)))

    def _install(self, view: View) -> None:
        with self._lock:
            self._view = view
            self._decisions.begin(spares=view.needed < len(groups.unpack(view.members)))
            is_amid = any(d.missing for d in self._declared)  # must not be
            self._interrupted = is_amid or not all(link.is_up for link in self._links)
        if is_amid:
            self._interrupt()

    def _interrupt(self) -> None:
        """Gives up the step under way."""
        with self._lock:
            self._interrupted = True
            waiting = [d for d in self._declared if d.missing]
            for declared in waiting:
                declared.missing = set()
            self._decisions.give_up()
        for declared in waiting:
            declared.deliver_nothing()

    def _refused(self, why: str) -> None:
        """One ps does not take what this worker sends: the others are told the reason."""
        self.meeting.fail(why)
        self._lose(why)

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._over or self.failure:
                return
            self.failure = why
        self.meeting.lose(why)
        self._on_failure(why)
        self._interrupt()
        for declared in self._declared:
            declared.cancel()


def _declaration(declared: Declared) -> bytes:
    return join_frame(Header(declared=declared.operation.message(declared.index)))
