"""A simulated worker: its training is a generator that yields where it waits."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import numpy as np

from terngrad.cluster.errors import FinishedError, MembershipError
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.config import ConnectConfig
from terngrad.connect.link import LinkEvents
from terngrad.coordination import groups
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.worker.client import END_SECS, Client
from terngrad.ops.packing import ReferencePacking
from terngrad.service.messages import View
from terngrad.testing.simulation.laws import Ledger, Result, State, contributors_of, gradient
from terngrad.testing.simulation.ps import SimulatedPs
from terngrad.testing.simulation.streams import Clock, SimulatedLink

STEPS = 6
# A sum of such codes over two workers takes fewer planes than one over three.
_MAX_CODE = 48
_T = TypeVar("_T")
Waits = Generator[None, None, _T]


class _Unpacked(ReferencePacking):
    """Lets the simulation's integers travel as they are."""

    def pack(self, words: memoryview, largest: int) -> memoryview:
        """See base class."""
        del largest
        return words

    def unpack(self, packed: memoryview, largest: int, words: np.ndarray) -> None:
        """See base class."""
        del largest
        words[:] = packed


_Delivered = tuple[np.ndarray, int, bool, tuple[int, int]]  # see `Deliver`


def operations_of(workers: int) -> list[Operation]:
    """Returns what workers do together in a step: a sum of floats, and one of codes.

    Instead of these they push integers of 32 bits, one for each worker, and zeros up to the bytes
    that the operation needs.
    """
    kinds = enumerate((Kind.FLOATS, Kind.CODES))
    return [Operation(f"family{i}/sum", kind, workers, 1, workers, _MAX_CODE) for i, kind in kinds]


class SimulatedNetwork:
    """The `SocketNetwork` of one process of a worker.

    Attributes:
      links: all links that were opened.
    """

    def __init__(
        self,
        rank: int,
        servers: Sequence[SimulatedPs],
        timeout_secs: float,
        clock: Clock,
        return_secs: float | None = None,
        reaches: Callable[[int], bool] = lambda ps: True,
    ) -> None:
        """Connects worker `rank` to these ps, while it reaches them."""
        self._rank, self._servers, self._reaches = rank, servers, reaches
        self._timeout_secs, self._clock, self._return_secs = timeout_secs, clock, return_secs
        self.links: list[SimulatedLink] = []
        self._beat: Callable[[], None] = lambda: None
        self._beat_secs, self._beat_at = 0.0, 0.0

    def open(
        self,
        ps: int,
        purpose: str,
        events: LinkEvents,
        *,
        waits: bool = True,
        was_there: bool = False,
    ) -> SimulatedLink:
        """See `SocketNetwork`."""
        del was_there
        server = self._servers[ps]
        link = SimulatedLink(
            ps,
            lambda: server.accept(self._rank, purpose) if self._reaches(ps) else None,
            events,
            self._timeout_secs,
            self._clock,
            waits=waits,
            nobody_listens=lambda: self._reaches(ps) and server.service is None,
            return_secs=self._return_secs,
        )
        self.links.append(link)
        return link

    def repeat(self, secs: float, call: Callable[[], None]) -> Callable[[], None]:
        """See `SocketNetwork`."""
        self._beat_secs, self._beat = secs, call
        return lambda: None

    def poll(self) -> None:
        """Acts on time-outs."""
        for link in self.links:
            link.poll()
        if self._clock() - self._beat_at >= self._beat_secs:
            self._beat_at = self._clock()
            self._beat()

    def close(self) -> None:
        """See `SocketNetwork`."""


class SimulatedWorker:
    """One process of a worker.

    Attributes:
      network: its streams.
      saves_what_it_lacks: whether it was ordered to save the state before it received any.
      ending: "done", "dismissed" if others were done, or why it failed; "" while it runs.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        servers: Sequence[SimulatedPs],
        timeout_secs: float,
        clock: Clock,
        ledger: Ledger,
        saved: bytes,
        *,
        elastic: bool,
        return_secs: float | None = None,
        reaches: Callable[[int], bool] = lambda ps: True,
        steps: int = STEPS,
        servers_add: bool = True,
    ) -> None:
        """Starts with the state of a checkpoint; b"" = none.

        With `return_secs` the coordinator moves.
        """
        self.rank, self._workers, self._clock, self._ledger = rank, workers, clock, ledger
        self._hosts = [[f"host{i}:1" for i in range(n)] for n in (workers, len(servers))]
        self._servers, self._timeout_secs, self._elastic = servers, timeout_secs, elastic
        self._moves, self._steps = return_secs is not None, steps
        self._servers_add = servers_add
        self.network = SimulatedNetwork(rank, servers, timeout_secs, clock, return_secs, reaches)
        self.ending = ""
        self.state = State(saved) if saved else State()
        self._view = View()
        self._is_live = self.saves_what_it_lacks = False
        self._progress = ProcessProgress()
        self._has_compiled = False
        self._results: list[collections.deque[_Delivered]] = []
        self._program = self._run()

    @property
    def batches(self) -> int | None:
        """See `ProcessProgress`."""
        return self._progress.batches

    @property
    def is_live(self) -> bool:
        """Whether it has the state of the training, not only that of a checkpoint."""
        return self._is_live

    @property
    def has_state(self) -> bool:
        """Whether it has the state without having been given it in its last view."""
        return self._is_live and self.rank not in groups.unpack(self._view.receivers)

    def resume(self) -> None:
        """Runs the main thread up to its next wait."""
        next(self._program, None)

    def _run(self) -> Waits[None]:
        began = self._clock()
        needed = self._servers[:1] if self._elastic else self._servers
        needed = self._servers[self.rank : self.rank + 1] if self._moves else needed
        while not all(self._can_open(ps) for ps in needed):
            if self._clock() - began > self._timeout_secs:
                self.ending = "a ps cannot be reached"
                return
            yield
        workers, servers = self._hosts
        self._client = Client(
            ConnectConfig(workers, self.rank, servers, self._timeout_secs),
            progress=self._progress,
            network=self.network,
            elastic=self._elastic,
            coordinator_moves=self._moves,
            servers_add=self._servers_add,
        )
        self._coordination = self._client.coordination
        self._begin()
        why = ""
        try:
            yield from self._train()
            self._coordination.leave()
            ending = "done"
        except FinishedError:
            self._coordination.leave()
            ending = "dismissed"
        except MembershipError as error:
            ending = why = str(error)
            self.saves_what_it_lacks = not self._is_live and self._coordination.saver == self.rank
        yield from self._close(why)
        self.ending = ending

    def _begin(self) -> None:
        """Prepares an exchange that does not use the ps."""

    def _leave(self) -> None:
        """Leaves the last view."""

    def _enter(self, view: View) -> Waits[None]:
        """Prepares the exchange of a new view."""
        yield from ()

    def _close(self, why: str) -> Waits[None]:
        """Waits as `Client.close` does; open streams still deliver messages."""
        began = self._clock()
        while not (why or self._client.failure or self._reaches_servers()):
            if self._clock() - began >= END_SECS:
                break
            yield
        self._client.close(is_done=True, why=why)

    def _reaches_servers(self) -> bool:
        # The first link is to the coordinator, later ones to the coordinators that replace it.
        exchange = self.network.links[1 : 1 + len(self._servers)]
        return all(link.is_up or self._client.servers.is_lost(link.ps) for link in exchange)

    def _can_open(self, ps: SimulatedPs) -> bool:
        is_there = ps.service is not None and not ps.is_stopped
        return is_there and all(stream.worker != self.rank for stream in ps.streams)

    def _train(self) -> Waits[None]:
        yield from self._gather("configuration", b"")
        yield from self._gather("tensor:examples", b"", 0)
        yield from self._share_state()
        self._declare()
        while self.state.steps < self._steps:
            if not (yield from self._step()):
                self._progress.batches = None
                yield from self._share_state()
        self._progress.batches = None
        while True:
            if self._client.saver == self.rank:
                self._ledger.note_saved(self.state)
            try:
                yield from self._gather("parameters at the end", b"")
                self._ledger.check_saved(self.state)
                return
            except InterruptionError:
                yield from self._share_state()

    def _gather(self, name: str, content: bytes, round_: int | None = None) -> Waits[None]:
        yield from self._wait(self._coordination.ask_values(name, content, round_))

    def _share_state(self) -> Waits[None]:
        """Does the same as `inception.training.preparation.synchronize`."""
        while (yield from self._synchronize()):
            try:
                yield from self._gather("parameters", bytes(self.state))
                return
            except InterruptionError:
                continue

    def _synchronize(self) -> Waits[bool]:
        """Does the same as `ParameterServerConnection.synchronize`."""
        self._leave()
        while True:
            while not self._client.failure and not self._client.servers.wait_until_ready(0):
                yield
            asked = self._coordination.ask_view(self.state.steps, is_live=self._is_live)
            view = yield from self._wait(asked)
            self._ledger.note_view(view)
            receivers = groups.unpack(view.receivers)
            try:
                yield from self._enter(view)
                if self.rank == view.donor and receivers:
                    self._coordination.give_state(view, [memoryview(bytes(self.state))])
                elif self.rank in receivers:
                    self._is_live = False
                    self.state = State((yield from self._wait(self._coordination.found_state)))
                    self._is_live = True
                    self._coordination.confirm_state(view)
            except InterruptionError:
                continue
            self._is_live, self._view = True, view
            self._ledger.note_state(self.rank, view, self.state)
            return view.is_first

    def _wait(self, find: Callable[[], _T | None]) -> Waits[_T]:
        """Waits as `CoordinatorClient` does."""
        while (found := find()) is None:
            self._coordination.check()
            yield
        return found

    def _declare(self) -> None:
        for operation in operations_of(self._workers):
            box: collections.deque[_Delivered] = collections.deque()
            self._results.append(box)
            deliver = lambda *delivered, box=box: box.append(delivered)
            self._client.declare(operation, deliver, lambda: None, _Unpacked())

    def _step(self) -> Waits[bool]:
        step = self.state.steps
        if self._has_compiled:
            self._progress.batches = step
        self._has_compiled = True
        self._progress.tick()
        yield
        self._client.steps.is_excluded(step)
        results = yield from self._exchange(step)
        if results is None or not self._commit(step):
            return False
        self.state.apply(contributors_of(results, self.state, self._view))
        self._ledger.note_step(self.rank, self._view)
        self._ledger.note_state(self.rank, self._view, self.state)
        return True

    def _exchange(self, step: int) -> Waits[list[Result] | None]:
        """Returns the sums of a step; None if it is given up."""
        for i, operation in enumerate(operations_of(self._workers)):
            content = np.zeros(operation.items * operation.pushed_bytes // 4, np.int32)
            content[: self._workers] = self._gradient(i)
            self._client.steps.push(i, step, content)
            yield
        while not all(self._results):
            if self._client.failure:
                return None
            yield
        return [self._whole(i, box.popleft()) for i, box in enumerate(self._results)]

    def _commit(self, step: int) -> bool:
        """Whether a step of which this worker has the sums counts."""
        return self._client.steps.commit(step)

    def _gradient(self, operation: int) -> np.ndarray:
        return gradient(self.rank, self.state, operation, self._workers)

    def _whole(self, operation: int, delivered: _Delivered) -> Result:
        """Returns a delivered result, with this worker's part."""
        content, workers, lacks_own, _ = delivered
        values = content.view(np.int32)[: self._workers]
        return values + self._gradient(operation) if lacks_own else values, workers
