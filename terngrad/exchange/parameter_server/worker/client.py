"""A worker's connection to all ps of a training."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from terngrad.cluster.channel import OtherFailedError
from terngrad.cluster.pulse import Pulse
from terngrad.connect.config import ConnectConfig
from terngrad.connect.link import ChannelLink, LinkEvents, SocketNetwork
from terngrad.coordination import groups
from terngrad.coordination.client import CoordinatorClient, Events
from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.worker.awaited_operation import Deliver
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.exchange.parameter_server.worker.steps import Steps
from terngrad.ops.packing import Packing
from terngrad.service.messages import LONGEST_RESULT, Header, join_frame

END_SECS = 5.0  # in which a worker tells all ps that it ends, and waits for their answers
_LONGEST_BEAT_SECS = 1.0
_BEATS = 4  # fewest heartbeats in the time-out
_LOOK_SECS = 0.2
_WAIT_SECS = 10.0  # for others, who may be slow, before a worker that must end gives them up
_GIVE_UP_SECS = 2.0  # for the answer of ps 0


class Client:
    """The connection to all ps of a training.

    Attributes:
      rank: index of this worker.
      size: number of workers.
      servers: which ps it reaches.
      meeting: messages to and from the coordinator, which is in ps 0.
      steps: pushes to all ps, and their results.
      failure: why the connection failed; "" while it works.
    """

    def __init__(
        self,
        config: ConnectConfig,
        pulse: Pulse | None = None,
        rules: str = "",
        network: SocketNetwork | None = None,
        *,
        elastic: bool = False,
    ) -> None:
        """Connects to all ps; waits for those that start later, if elastic for ps 0 only.

        Args:
          config: of this worker; the ps know its hosts.
          pulse: progress of this worker.
          rules: text of the `Rules` that this worker expects; "" = any.
          network: opens the streams; None = sockets.
          elastic: whether the training goes on without a lost ps.

        Raises:
          MembershipError: names a ps that cannot be reached or refuses this worker.
        """
        self.rank, self.size = config.rank, len(config.worker_hosts)
        ps_count = len(config.ps_hosts)
        self.servers = Servers(
            ps_count, elastic=elastic, tell_lost=lambda lost: self.meeting.tell_lost(lost)
        )
        self.failure = ""
        self._on_failure: Callable[[str], None] = lambda text: None
        self._over = False
        self._network = network or SocketNetwork(config, LONGEST_RESULT, rules)
        self._stop_beats: Callable[[], None] = lambda: None
        self._links: list[ChannelLink] = []
        self.steps = Steps(
            self.rank,
            self.servers,
            send=lambda ps, frame: self._links[ps].send(frame),
            tell_ready=lambda step: self.meeting.ready(step),
            refuse=self._refuse,
        )
        events = Events(
            on_view=self.steps.install,
            on_freeze=self.steps.interrupt,
            on_go=self.steps.go,
            on_lost_ps=self.servers.use_all_but,
            on_open=self.servers.tell,
            on_end=self._lose,
        )
        self.meeting = CoordinatorClient(events)
        try:
            self._meet(pulse or Pulse(), min(_LONGEST_BEAT_SECS, config.timeout_secs / _BEATS))
            for ps in range(ps_count):
                self._check()
                self._links.append(self._connect(ps, waits=ps == 0 or not elastic))
            self._check()
        except BaseException:
            self.close(is_done=False)
            self._check()
            raise
        for link in self._links:
            link.start()

    def watch(self, on_failure: Callable[[str], None]) -> None:
        """Calls `on_failure` with the reason, from any thread, when the training must end."""
        self._on_failure = on_failure
        if self.failure:
            on_failure(self.failure)

    def wait_for_servers(self) -> None:
        """Waits until this worker reaches all ps but the lost ones, or the connection failed."""
        while not self.failure and not self.servers.wait_until_ready(_LOOK_SECS):
            pass

    @property
    def interrupted(self) -> bool:
        """Whether steps must wait for a new view."""
        return self.steps.interrupted

    @property
    def leads(self) -> bool:
        """Whether this worker saves: ps 0 chose it at the end, or it is the first of the view."""
        if (saver := self.meeting.saver) is not None:
            return saver == self.rank
        with self.steps.lock:
            return groups.unpack(self.steps.view.members)[:1] == (self.rank,)

    @property
    def has_backup_workers(self) -> bool:
        """Whether a step needs fewer workers than the view has."""
        return self.steps.has_backup_workers

    def follows(self, step: int) -> bool:
        """See `StepContributors`."""
        return self.steps.is_excluded(step)

    def declare(
        self,
        operation: Operation,
        deliver: Deliver,
        cancel: Callable[[], None],
        packing: Packing | None = None,
    ) -> int:
        """See `Steps.declare`."""
        index = self.steps.declare(operation, deliver, cancel, packing)
        if self.failure:
            cancel()
        return index

    def push(self, index: int, step: int, content: np.ndarray) -> None:
        """See `Steps.push`."""
        self.steps.push(index, step, content)

    def commit(self, step: int) -> bool:
        """See `Steps.commit`."""
        return self.steps.commit(step)

    def takes_part(self, step: int) -> bool:
        """See `Steps.takes_part`."""
        return self.steps.takes_part(step)

    def require_in_next_step(self) -> None:
        """Makes the next steps wait for this worker, if steps are made without some workers."""
        if self.has_backup_workers:
            self.meeting.require_in_next_step()

    def give_up(self, why: str, *, alone: bool = False) -> None:
        """Ends the training of all workers if this one waits.

        Args:
          why: the reason.
          alone: end that of this one only, as without ps 0.
        """
        if not self.steps.waits(_WAIT_SECS):
            return
        if alone:
            self._lose(why)
            return
        self.meeting.fail(why, is_shared=True)
        deadline = time.monotonic() + _GIVE_UP_SECS
        while not self.failure and time.monotonic() < deadline:
            time.sleep(_LOOK_SECS)
        self._lose(why)

    def close(self, *, is_done: bool, why: str = "") -> None:
        """Ends all streams.

        Args:
          is_done: whether this worker says goodbye; otherwise the ps count it as lost.
          why: error with which this worker ends; "" = none. Sent only with the goodbye.
        """
        self._over = True
        self._stop_beats()
        bye = join_frame(Header(bye=True, failed=why[:1000])) if is_done else None
        deadline = time.monotonic() + END_SECS
        if is_done and not why and not self.failure:
            for ps, link in enumerate(self._links):  # else a ps counts this worker as lost
                if not self.servers.is_lost(ps):
                    link.wait_until_up(max(0.0, deadline - time.monotonic()))
        for link in self._links:
            link.end(bye)
        self.meeting.end(END_SECS)
        if is_done:
            deadline = time.monotonic() + END_SECS  # the wait for one ps takes nothing from others
            for ps, link in enumerate(self._links):
                if not self.servers.is_lost(ps):
                    link.join(max(0.0, deadline - time.monotonic()))
        self._network.close()

    def _meet(self, pulse: Pulse, beat_secs: float) -> None:
        meeting = self.meeting
        events = LinkEvents(
            lock=meeting.changed,
            on_message=meeting.take,
            on_break=lambda: (self.steps.interrupt(), meeting.broken()),
            on_open=meeting.opened,
            on_loss=self._lose,
            on_refusal=self._lose,
        )
        meeting.use(self._network.open(0, "Meet", events), pulse)
        self._stop_beats = self._network.repeat(beat_secs, meeting.tell_progress)

    def _check(self) -> None:
        """Raises OtherFailedError if the training has ended, because another worker failed."""
        if self.failure:
            raise OtherFailedError(self.failure)

    def _connect(self, ps: int, *, waits: bool) -> ChannelLink:
        events = LinkEvents(
            lock=self.steps.lock,
            on_message=functools.partial(self.steps.take, ps),
            on_break=lambda: self._break(ps),
            on_open=lambda: self._open(ps),
            on_loss=lambda why: self.servers.lose(ps) or self._lose(why),
            on_refusal=lambda why: self.servers.is_lost(ps) or self._refuse(why),
        )
        link = self._network.open(ps, "Exchange", events, waits=waits)
        if link.is_up:
            self.servers.opened(ps)
        return link

    def _open(self, ps: int) -> None:
        self.steps.declare_again(ps)
        self.servers.opened(ps)

    def _break(self, ps: int) -> None:
        if self.servers.broke(ps):
            self.steps.interrupt()

    def _refuse(self, why: str) -> None:
        """Ends the training for all workers, because a ps refused what this worker sent."""
        self.meeting.fail(why)
        self._lose(why)

    def _lose(self, why: str) -> None:
        with self.steps.lock:
            if self._over or self.failure:
                return
            self.failure = why
        self.meeting.lose(why)
        self._on_failure(why)
        self.steps.interrupt()
        self.steps.cancel()
