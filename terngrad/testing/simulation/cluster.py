"""Simulated workers and ps in one process: their faults, and the laws that always hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from terngrad.cluster.addresses import name_of
from terngrad.cluster.progress import GIVE_UP_TIME_OUTS
from terngrad.coordination.states import JOINED, Rules
from terngrad.testing.simulation.laws import Ledger, require
from terngrad.testing.simulation.ps import KEPT_STEPS, SimulatedPs
from terngrad.testing.simulation.streams import Clock, SimulatedLink, Stream
from terngrad.testing.simulation.worker import STEPS, SimulatedWorker, operations_of

_GOOD_ENDINGS = {
    "done",
    "dismissed",
    # All the others were done before it was here again, and the ps have ended.
    "a ps cannot be reached",
    *(f"ps {ps} did not come back" for ps in range(2)),
}
TIMEOUT_SECS = 10.0
_TICK_SECS = 1.0
LONG_SECS = TIMEOUT_SECS / 2  # total time at fault after which a worker may count as lost
_VERY_LONG_SECS = (GIVE_UP_TIME_OUTS - 1) * TIMEOUT_SECS  # after which no step is made
_IDLE_ROUNDS = 3  # in which each main thread reaches its next wait
_SETTLE_SECS = 4 * GIVE_UP_TIME_OUTS * TIMEOUT_SECS
_HEADER_BYTES = 20  # of a push, at most


def check_ending(
    rules: Rules,
    servers: Sequence[SimulatedPs],
    workers: Sequence[SimulatedWorker | None],
    lost: set[int],
    live: set[int],
    history: str,
) -> None:
    """A training is done if enough workers were healthy; else the outcome names a lost one.

    The outcome is the first one of ps 0. A ps may be killed after that and before it ends. The
    workers to which it has sent the outcome have ended then, as they must. A ps that starts later
    cannot know why they are missing, so its own outcome does not count.

    If the chief was lost and no healthy worker had the state, the training could not continue with
    any number of workers. Then the outcome names the chief.

    Args:
      rules: of the training.
      servers: all ps, of which none was lost for long.
      workers: all, which have ended.
      lost: those that were at fault for long, or are gone.
      live: those that had the state of the training when ps 0 had that outcome.
      history: what happened, for messages.

    Raises:
      BrokenLawError: the training ended otherwise.
    """
    outcome, hosts = servers[0].first_outcome or "", servers[0].hosts
    well = {*range(len(workers))} - lost
    enough = 1 if rules.elastic else rules.needed
    is_stateless = 0 in lost and not well & live and name_of(0, hosts) in outcome
    if len(well) < enough or is_stateless:
        # No step within many time-outs: all hang, and none of them alone is named.
        is_named = not well or any(name_of(rank, hosts) in outcome for rank in lost)
        require(not outcome or is_named, f"the outcome names no worker that was lost: {history}")
        return
    failures = [outcome, *(ps.outcome for ps in servers)]
    require(not any(failures), f"a ps failed, though enough workers were well: {history}")
    endings = {rank: worker.ending for rank, worker in enumerate(workers) if worker}
    for rank in well:
        require(endings[rank] in _GOOD_ENDINGS, f"worker {rank} failed, though well: {history}")


Event = Callable[[], None]


class SimulatedCluster:
    """A simulated training.

    Attributes:
      servers: all ps.
      workers: the last process of each worker; None before the first and after a kill.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        needed: int,
        elastic: bool,
        seed: int,
        steps: int = STEPS,
        **rules: Any,
    ) -> None:
        """Starts no process; `seed` decides the order of events."""
        self._steps = steps
        self.clock = Clock()
        self._rules = Rules(needed, elastic, TIMEOUT_SECS, **rules)
        self._random = random.Random(seed)
        self._ledger = Ledger()
        self.servers = [
            SimulatedPs(i, servers, workers, self._rules, self.clock) for i in range(servers)
        ]
        self.workers: list[SimulatedWorker | None] = [None] * workers
        self._saved = [b""] * workers
        self._hung: set[int] = set()  # workers whose main thread is blocked
        self._stopped: dict[int, float] = {}  # workers whose process is stopped, and since when
        self._stopped_ps: dict[int, float] = {}
        self._stuck: dict[tuple[int, int, str], float] = {}  # streams on which nothing arrives
        self._out_secs = [0.0] * workers  # for which each worker, and each ps, was at fault
        self._ps_out_secs = [0.0] * servers
        self._hung_secs = [0.0] * workers  # for which each main thread was blocked
        self._stalls = 0  # that ps 0 has logged
        self._live: set[int] | None = None  # workers with the state when ps 0 had an outcome
        self._some_are_done = self._may_fail = False

    def start(self) -> None:
        """Starts all ps and workers, and lets them make a few steps."""
        for ps in range(len(self.servers)):
            self.start_ps(ps)
        for rank in range(len(self.workers)):
            self.start_worker(rank)
        self.deliver(120)

    def start_worker(self, rank: int) -> None:
        """Starts a worker unless it runs."""
        worker = self.workers[rank]
        if worker and (not worker.ending or any(link.is_up for link in worker.network.links)):
            return
        self.workers[rank] = self._new_worker(rank)

    def _new_worker(
        self, rank: int, kind: type[SimulatedWorker] = SimulatedWorker, **more: Any
    ) -> SimulatedWorker:
        return kind(
            rank,
            len(self.workers),
            self.servers,
            TIMEOUT_SECS,
            self.clock,
            self._ledger,
            self._saved[rank],
            elastic=self._rules.elastic,
            steps=self._steps,
            **more,
        )

    def kill_worker(self, rank: int, kept: int, has_saved: bool) -> None:
        """Kills a worker; `kept` of its last messages still arrive on each stream."""
        if (worker := self.workers[rank]) is None or worker.ending:
            return
        if has_saved and rank == 0:
            self._saved[rank] = bytes(worker.state)
        # It may be the last worker, and may have said goodbye to some ps only.
        self._may_fail |= worker.state.steps == self._steps
        self._cut(worker, kept)
        self.workers[rank] = None
        self.wake(rank)

    def hang(self, rank: int) -> None:
        """Blocks a worker's main thread."""
        self._hung.add(rank)

    def stop(self, rank: int) -> None:
        """Stops all threads of a worker."""
        self._stopped.setdefault(rank, self.clock())

    def wake(self, rank: int) -> None:
        """Lets a worker that hung or was stopped continue."""
        self._hung.discard(rank)
        self._stopped.pop(rank, None)

    def start_ps(self, ps: int) -> None:
        """Starts a ps unless it runs or its run is over."""
        server = self.servers[ps]
        if server.service is None and server.outcome is None:
            server.start()

    def kill_ps(self, ps: int, kept: int) -> None:
        """Kills a ps; `kept` of its last messages still arrive on each stream."""
        if self.servers[ps].service is not None:
            # A new process does not know which workers are done, and waits for them in vain.
            self._may_fail |= any(w and w.state.steps == self._steps for w in self.workers)
            self.servers[ps].kill(kept)
            self.wake_ps(ps)

    def stop_ps(self, ps: int) -> None:
        """Stops all threads of a ps."""
        self._stopped_ps.setdefault(ps, self.clock())
        self.servers[ps].is_stopped = True

    def wake_ps(self, ps: int) -> None:
        """Lets a stopped ps continue."""
        self._stopped_ps.pop(ps, None)
        self.servers[ps].is_stopped = False

    def stick(self, rank: int, ps: int, purpose: str) -> None:
        """Holds back all messages of a stream."""
        self._stuck.setdefault((rank, ps, purpose), self.clock())

    def release(self) -> None:
        """Delivers messages that were held back."""
        self._stuck.clear()

    def cut(self, rank: int, ps: int, purpose: str, kept_up: int, kept_down: int) -> None:
        """Breaks a stream; `kept_up` and `kept_down` messages still arrive."""
        for stream in self.servers[ps].streams:
            if (stream.worker, stream.purpose) == (rank, purpose):
                stream.lose(kept_up, kept_down)

    def deliver(self, count: int) -> None:
        """Lets `count` events happen, one after another, without passing time."""
        for _ in range(count):
            if not (events := self._events()):
                break
            self._random.choice(events)()
        self.check()

    def run(self, seconds: float) -> None:
        """Lets time pass; most of the possible events happen in it."""
        end = self.clock() + seconds
        while self.clock() < end:
            for _ in range(self._random.randrange(4)):
                events = self._events()
                self._random.shuffle(events)
                for event in events:
                    event()
            self._tick()
            self.check()

    def settle(self, *, restart: bool, restart_ps: bool = True) -> None:
        """Ends all faults and requires that the training ends as it must.

        Args:
          restart: whether to start killed workers again.
          restart_ps: whether to start killed ps again that an elastic training may lose.
        """
        self.release()
        for rank in range(len(self.workers)):
            self.wake(rank)
            if restart and self.workers[rank] is None:
                self.start_worker(rank)
        for ps in range(len(self.servers)):
            self.wake_ps(ps)
            if restart_ps or ps not in self._dispensable:
                self.start_ps(ps)
        deadline = self.clock() + _SETTLE_SECS
        while not self._is_over():
            require(self.clock() < deadline, f"no progress: {self.describe()}")
            self._do_all()
            self._tick()
            self.check()
        self._check_ending()

    def check(self) -> None:
        """Checks the laws that hold at any time; `Ledger` checks each step of a worker."""
        for ps in self.servers:
            if ps.service is not None:
                self._check_memory(ps)
                streams = {(stream.worker, stream.purpose) for stream in ps.streams}
                require(len(streams) == len(ps.streams), f"ps {ps.index}: a worker joined twice")
        if self._live is None and self.servers[0].first_outcome is not None:
            self._live = {worker.rank for worker in self.workers if worker and worker.is_live}
        self._check_stall()
        for worker in self.workers:
            if worker is not None:
                self._some_are_done |= worker.ending == "done"
                # A worker says goodbye once: if that is lost, a ps counts the worker as lost. Ps 0
                # also hears it on the coordination stream, the first link.
                self._may_fail |= any(link.lost_goodbye for link in worker.network.links[1:])
                if worker.saves_what_it_lacks:
                    self._check_saver(worker)
                require("refused" not in worker.ending, f"worker {worker.rank}: {worker.ending}")

    def _check_stall(self) -> None:
        """Only a worker that hangs amid the step of all others holds them up for very long.

        One that is lost, or that takes no next batch, is noticed after a time-out. A ps that was
        stopped has read no reports.
        """
        server = self.servers[0]
        lines = (*server.log, server.first_outcome or "")
        before, self._stalls = self._stalls, sum(map(_reports_stall, lines))
        if self._stalls > before and not self._a_ps_was_out():
            taken = {w.rank: w.batches for w in self.workers if w and w.batches is not None}
            first = {rank for rank, count in taken.items() if count == max(taken.values())}
            hung = {rank for rank, secs in enumerate(self._hung_secs) if secs >= _VERY_LONG_SECS}
            require(first & hung, f"nobody hangs amid the step of the others: {self.describe()}")

    def _check_saver(self, saver: SimulatedWorker) -> None:
        """A worker that lacks the state may save only if no other is known to have it."""
        coordinator = self.servers[0].service and self.servers[0].service.coordinator
        for worker in self.workers:
            if worker and worker.has_state and coordinator:
                is_well = name_of(worker.rank, self.servers[0].hosts) not in saver.ending
                is_joined = coordinator.state.records[worker.rank].status in JOINED
                text = f"worker {saver.rank} saves, not {worker.rank}: {self.describe()}"
                require(not (is_well and is_joined), text)

    def _check_memory(self, ps: SimulatedPs) -> None:
        """A worker pushes one step at a time here; in each worker's view the last results stay."""
        workers, aggregator = len(self.workers), ps.service.aggregator
        operations = operations_of(workers)
        max_results = workers * KEPT_STEPS * sum(o.items * o.result_bytes for o in operations)
        max_pushes = workers * sum(o.items * o.pushed_bytes + _HEADER_BYTES for o in operations)
        results = aggregator.result_bytes
        pushes = aggregator.memory_bytes - results
        text = f"ps {ps.index} keeps {{}} bytes of {{}}; allowed are {{}}".format
        require(results <= max_results, text(results, "results", max_results))
        require(pushes <= max_pushes, text(pushes, "pushes", max_pushes))

    def describe(self) -> str:
        """Describes the progress of all processes, for messages."""
        endings = {w.rank: w.ending or f"at step {w.state.steps}" for w in self.workers if w}
        logs = {f"ps {ps.index}": (ps.outcome, ps.log[-5:]) for ps in self.servers}
        return f"{self.clock():g} s, workers {endings}, {logs}"

    def _do_all(self) -> None:
        """Lets all events happen that can happen without passing time."""
        idle = 0
        while idle < _IDLE_ROUNDS:
            arriving = [*self._arriving()]
            for event in (*arriving, *self._resumable()):
                event()
            idle = 0 if arriving else idle + 1

    def _is_over(self) -> bool:
        ended = all(worker is None or worker.ending for worker in self.workers)
        # A ps waits for its first worker without a time limit.
        return ended and all(
            ps.service is None or ps.outcome is not None or not ps.was_reached
            for ps in self.servers
        )

    def _check_ending(self) -> None:
        if self._may_fail or self._a_ps_was_out():
            return
        history = self.describe()
        lost = {rank for rank, secs in enumerate(self._out_secs) if secs >= LONG_SECS}
        lost |= {rank for rank, worker in enumerate(self.workers) if worker is None}
        servers = [ps for ps in self.servers if self._ps_out_secs[ps.index] < LONG_SECS]
        check_ending(self._rules, servers, self.workers, lost, self._live or set(), history)
        if len(lost) < len(self.workers):
            require(
                self._some_are_done or self.servers[0].first_outcome, f"nobody is done: {history}"
            )

    def _a_ps_was_out(self) -> bool:
        """Whether one was at fault for long that the training cannot lose."""
        out = {ps for ps, secs in enumerate(self._ps_out_secs) if secs >= LONG_SECS}
        return bool(out - self._dispensable)

    @property
    def _dispensable(self) -> set[int]:
        """The ps that the training may lose for good."""
        return {*range(1, len(self.servers))} if self._rules.elastic else set()

    def _events(self) -> list[Event]:
        """Returns all events that can happen now."""
        return [*self._arriving(), *self._resumable()]

    def _resumable(self) -> list[Event]:
        idle = self._hung | self._stopped.keys()
        return [w.resume for w in self.workers if w and not w.ending and w.rank not in idle]

    def _arriving(self) -> Iterator[Event]:
        for ps in self.servers:
            if ps.service is not None and ps.index not in self._stopped_ps:
                for stream in ps.streams:
                    if stream.up.waiting and not self._is_stuck(ps.index, stream):
                        yield lambda ps=ps, stream=stream: self._receive_up(ps, stream)
        for worker in self.workers:
            if worker is not None and worker.rank not in self._stopped:
                for link in worker.network.links:
                    stream = link.stream
                    if stream and stream.down.waiting and not self._is_stuck(link.ps, stream):
                        yield lambda link=link, stream=stream: self._receive_down(link, stream)

    def _is_stuck(self, ps: int, stream: Stream) -> bool:
        return (stream.worker, ps, stream.purpose) in self._stuck

    @staticmethod
    def _receive_up(ps: SimulatedPs, stream: Stream) -> None:
        if stream in ps.streams and stream.up.waiting:  # else it has ended since
            ps.take(stream)

    @staticmethod
    def _receive_down(link: SimulatedLink, stream: Stream) -> None:
        if link.stream is stream and stream.down.waiting:
            link.take()

    def _tick(self) -> None:
        self.clock.now += _TICK_SECS
        for rank in range(len(self.workers)):
            self._out_secs[rank] += _TICK_SECS * self._is_out(rank)
            self._hung_secs[rank] += _TICK_SECS * (rank in self._hung)
        for ps in self.servers:
            is_lost = ps.service is None and ps.outcome is None
            self._ps_out_secs[ps.index] += _TICK_SECS * (is_lost or ps.is_stopped)
        self._notice_silence()
        for ps in self.servers:
            if ps.index not in self._stopped_ps:
                ps.poll()
        for worker in self.workers:
            if worker is not None and worker.rank not in self._stopped:
                worker.network.poll()

    def _is_out(self, rank: int) -> bool:
        stuck = {worker for worker, _, _ in self._stuck}
        return self.workers[rank] is None or rank in self._hung | self._stopped.keys() | stuck

    def _notice_silence(self) -> None:
        """Breaks streams that were silent for the time-out, as keep-alives do."""
        now = self.clock()
        for (rank, ps, purpose), since in [*self._stuck.items()]:
            if now - since >= TIMEOUT_SECS:
                for stream in self.servers[ps].streams:
                    if (stream.worker, stream.purpose) == (rank, purpose):
                        stream.was_silent = True
                self.cut(rank, ps, purpose, 0, 0)
                del self._stuck[rank, ps, purpose]
        for ps in self.servers:
            for stream in ps.streams:
                since = min(
                    self._stopped.get(stream.worker, now), self._stopped_ps.get(ps.index, now)
                )
                if now - since >= TIMEOUT_SECS:
                    stream.was_silent = True
                    stream.lose(0, 0)

    @staticmethod
    def _cut(worker: SimulatedWorker, kept: int) -> None:
        for link in worker.network.links:
            if link.stream is not None:
                link.stream.lose(kept, 0)


def _reports_stall(line: str) -> bool:
    return line.startswith("no worker made a step")
