"""A worker's connection to all ps of a training."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from terngrad.cluster.errors import OtherFailedError
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.config import ConnectConfig
from terngrad.connect.introduction import COORDINATION, EXCHANGE
from terngrad.connect.link import ChannelLink, LinkEvents, SocketNetwork
from terngrad.coordination import groups
from terngrad.coordination.client import CoordinatorClient, Events
from terngrad.exchange.parameter_server.operations import Operation
from terngrad.exchange.parameter_server.worker.awaited_operation import Deliver
from terngrad.exchange.parameter_server.worker.servers import Servers
from terngrad.exchange.parameter_server.worker.steps import Steps
from terngrad.ops.packing import Packing
from terngrad.service.messages import LONGEST_RESULT, Header, View, join_frame

END_SECS = 5.0  # in which a worker tells all ps that it ends, and waits for their answers
_LONGEST_BEAT_SECS = 1.0
_BEATS = 4  # fewest heartbeats in the time-out
_POLL_SECS = 0.2
_WAIT_SECS = 10.0  # for others, who may be slow, before a worker that must end gives them up
_GIVE_UP_SECS = 2.0  # for the answer of ps 0


class Client:
    """The connection to all ps of a training.

    Attributes:
      rank: index of this worker.
      size: number of workers.
      servers: which ps it reaches.
      coordination: messages to and from the coordinator, in ps 0 or, where it moves, in the
        ps that the workers have chosen.
      steps: pushes to all ps, and their results.
      failure: why the connection failed; "" while it works.
    """

    def __init__(
        self,
        config: ConnectConfig,
        progress: ProcessProgress | None = None,
        rules: str = "",
        network: SocketNetwork | None = None,
        *,
        elastic: bool = False,
        coordinator_moves: bool = False,
        servers_add: bool = True,
    ) -> None:
        """Connects to all ps; waits for those that start later, if elastic for ps 0 only.

        Where the coordinator moves, it waits for none: the first calls of `coordination` do.

        Args:
          config: of this worker; the ps know its hosts.
          progress: progress of this worker.
          rules: text of the `Rules` that this worker expects; "" = any.
          network: opens the streams; None = sockets.
          elastic: whether the training goes on without a lost ps.
          coordinator_moves: see `Rules`.
          servers_add: whether the ps add; otherwise they only coordinate.

        Raises:
          MembershipError: names a ps that cannot be reached or refuses this worker.
        """
        self.rank, self.size = config.rank, len(config.worker_hosts)
        ps_count = len(config.ps_hosts)
        self.servers = Servers(
            ps_count,
            elastic=elastic,
            coordinator_moves=coordinator_moves,
            add=servers_add,
            report_lost=lambda lost: self.coordination.report_lost(lost),
        )
        self._moves = coordinator_moves
        self._coordinator = 0
        self._coordinator_links = 0  # links to coordinators so far
        self._moving = threading.Lock()  # to another coordinator
        # Number of the last view, and how many coordinators were asked since.
        self._position = 0, 0
        self._tried: set[int] = set()  # ps that did not coordinate since the last view
        # Ps at whose addresses nobody listens, and those of them that it reached until then.
        self._ended: frozenset[int] = frozenset()
        self._ended_in_view: frozenset[int] = frozenset()
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
            report_ready=lambda step: self.coordination.ready(step),
            refuse=self.refuse,
            on_coordinator=self._follow,
        )
        events = Events(
            on_view=self._install,
            on_report_request=self.steps.interrupt,
            on_go=self.steps.go,
            on_lost_ps=self.servers.use_all_but,
            on_open=self._report_servers,
            on_end=self._lose,
        )
        self.coordination = CoordinatorClient(events)
        try:
            self._connect_coordinator(
                progress or ProcessProgress(), min(_LONGEST_BEAT_SECS, config.timeout_secs / _BEATS)
            )
            for ps in range(ps_count):
                self._check()
                waits = not elastic or (ps == 0 and not coordinator_moves)
                self._links.append(self._connect(ps, waits=waits))
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
        """Waits until `servers` are ready, or until the connection has failed."""
        while not self.failure and not self.servers.wait_until_ready(_POLL_SECS):
            pass

    @property
    def saver(self) -> int | None:
        """The worker that saves: that of the view, or whom ps 0 chose at the end; None = nobody."""
        if (saver := self.coordination.saver) is not None:
            return saver
        with self.steps.lock:
            return self.steps.view.saver if self.steps.view.number else None

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

    def require_in_next_step(self) -> None:
        """Makes the next steps wait for this worker, if steps are made without some workers."""
        if self.steps.has_backup_workers:
            self.coordination.require_in_next_step()

    def give_up(self, why: str, *, alone: bool = False) -> None:
        """Ends the training of all workers if this one waits.

        Args:
          why: the reason.
          alone: whether only this worker ends, as where it has lost ps 0.
        """
        if not self.steps.waits(_WAIT_SECS):
            return
        if alone:
            self._lose(why)
            return
        self.coordination.fail(why, is_shared=True)
        deadline = time.monotonic() + _GIVE_UP_SECS
        while not self.failure and time.monotonic() < deadline:
            time.sleep(_POLL_SECS)
        self._lose(why)

    def refuse(self, why: str) -> None:
        """Ends the training for all workers, because a process broke a rule."""
        self.coordination.fail(why)
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
        self.coordination.end(END_SECS)
        if is_done:
            deadline = time.monotonic() + END_SECS  # the wait for one ps takes nothing from others
            for ps, link in enumerate(self._links):
                if not self.servers.is_lost(ps):
                    link.join(max(0.0, deadline - time.monotonic()))
        self._network.close()

    def _connect_coordinator(self, progress: ProcessProgress, beat_secs: float) -> None:
        events, waits = self._coordination_events(), not self._moves
        link = self._network.open(0, COORDINATION, events, waits=waits)
        self.coordination.use(link, progress)
        self._stop_beats = self._network.repeat(beat_secs, self._beat)

    def _coordination_events(self) -> LinkEvents:
        """Returns what happens on a link to a coordinator, until the next one replaces it."""
        coordination, number = self.coordination, self._coordinator_links

        def if_current(act: Callable[..., bool | None]) -> Callable[..., bool | None]:
            return lambda *given: act(*given) if self._coordinator_links == number else None

        return LinkEvents(
            lock=coordination.changed,
            on_message=lambda message: coordination.handle(
                message, lambda: self._coordinator_links == number
            ),
            on_break=if_current(lambda: (self.steps.interrupt(), coordination.broken())),
            on_open=if_current(coordination.opened),
            on_loss=if_current(self._look_for_another),
            on_refusal=if_current(self._leave_for_good),
            on_message_refusal=if_current(self._leave_for_good),
        )

    def _beat(self) -> None:
        self.coordination.send_progress()
        if self._moves:
            self._note_ended()

    def _install(self, view: View) -> None:
        with self.steps.lock:
            self._tried.clear()
            self._position = view.number, 0
            for link in self._links:
                link.was_ended = False  # what ended before says nothing of this view
            if self._ended_in_view:
                self._ended_in_view = frozenset()
                self.coordination.report_ended(self._ended, self._ended_in_view)
        self.steps.install(view)

    def _report_servers(self) -> None:
        self.servers.report_all_lost()
        if self._ended or self._ended_in_view:
            self.coordination.report_ended(self._ended, self._ended_in_view)

    def _note_ended(self) -> None:
        with self.steps.lock:
            ended = frozenset(ps for ps, link in enumerate(self._links) if link.nobody_listens)
            at_once = frozenset(ps for ps in ended if self._links[ps].was_ended)
            in_view = self._ended_in_view | at_once  # also when another process listens again
            if (ended, in_view) != (self._ended, self._ended_in_view):
                self._ended, self._ended_in_view = ended, in_view
                self.coordination.report_ended(ended, in_view)

    def _look_for_another(self, why: str) -> bool:
        """Chooses the next coordinator, as all workers do: the first member that is left.

        Returns:
          Whether to look further for the present one, with which the training begins.
        """
        is_first_loss = self._coordinator not in self._tried
        self._tried.add(self._coordinator)
        members = groups.unpack(self.coordination.view.members)
        left = [ps for ps in members if ps not in self._tried and not self.servers.is_lost(ps)]
        if self._moves and not members and is_first_loss:
            return True
        if not self._moves or not left:
            self._lose(why)
            return False
        self._note_ended()
        view, asked = self._position
        self._go_to(left[0], (view, asked + 1))
        return False

    def _leave_for_good(self, why: str) -> bool:
        """Looks for another coordinator than one that refuses this worker."""
        self._tried.add(self._coordinator)
        return self._look_for_another(why)

    def _follow(self, position: tuple[int, int], coordinator: int) -> None:
        """Goes where others are that are further: all then ask the same coordinator."""
        own = self._position
        is_tie = position == own and position[1] and coordinator < self._coordinator
        if self._moves and (position > own or is_tie):
            self._go_to(coordinator, position)

    def _go_to(self, coordinator: int, position: tuple[int, int]) -> None:
        with self._moving:  # several links may notice the same loss
            if self._over or self.failure or position < self._position:
                return
            self._position = position
            if coordinator == self._coordinator:
                return
            self._coordinator = coordinator
            self._coordinator_links += 1
            self.steps.interrupt()
            for other in self._links:
                other.send(self._sought())
            events = self._coordination_events()
            link = self._network.open(
                coordinator, COORDINATION, events, waits=False, was_there=True
            )
            self.coordination.move(link)
            self.steps.interrupt()  # the last coordinator may have sent a view meanwhile

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
            on_loss=lambda why: self._do_without(ps) or self._lose(why),
            # Only this worker, whose certificate may be revoked: a ps with other flags tells all.
            on_refusal=lambda why: self.servers.is_lost(ps) or self._lose(why),
            on_message_refusal=lambda why: self.servers.is_lost(ps) or self.refuse(why),
        )
        link = self._network.open(ps, EXCHANGE, events, waits=waits)
        if link.is_up:
            self.servers.opened(ps)
        return link

    def _do_without(self, ps: int) -> bool:
        """Notes that a ps is lost; returns whether the training goes on."""
        goes_on = self.servers.lose(ps)
        if goes_on and self._moves:
            self._note_ended()
        return goes_on

    def _sought(self) -> bytes:
        view, asked = self._position
        header = Header(seeks=True, view=view, step=asked, coordinator=self._coordinator)
        return join_frame(header)

    def _open(self, ps: int) -> None:
        self.steps.declare_again(ps)
        if self._position[1]:
            self._links[ps].send(self._sought())
        self.servers.opened(ps)

    def _break(self, ps: int) -> None:
        if self.servers.broke(ps):
            self.steps.interrupt()

    def _lose(self, why: str) -> None:
        with self.steps.lock:
            if self._over or self.failure:
                return
            self.failure = why
        self.coordination.lose(why)
        self._on_failure(why)
        self.steps.interrupt()
        self.steps.cancel()
