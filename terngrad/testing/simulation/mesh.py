"""Simulated workers that exchange gradients by a mesh for each view; no ps adds."""

from __future__ import annotations

import collections
import functools
import json
import random
from collections.abc import Callable, Iterator

import numpy as np

from terngrad.coordination import groups
from terngrad.exchange.parameter_server.elastic_mesh import leavers
from terngrad.service.messages import View
from terngrad.testing.simulation.laws import Result, gradient
from terngrad.testing.simulation.worker import SimulatedWorker, Waits

_Vectors = dict[int, np.ndarray]  # by worker
_Message = tuple[str, int, np.ndarray]  # "codes" or "sums", use, values
LEFT = "left alone"


class MeshEnd:
    """One process' end of the mesh of a view; each process owns a share of the sums.

    Attributes:
      is_over: whether it no longer sends or receives.
    """

    def __init__(self, rank: int, members: tuple[int, ...]) -> None:
        """Starts without connections."""
        self.is_over = False
        self._rank, self._members = rank, members
        self._queues: dict[MeshEnd, collections.deque[_Message]] = {}  # what others get
        self._ended: set[int] = set()  # members whose connection has ended
        self._use = 0
        self._is_open = False  # whether a use is under way
        self._codes: dict[int, _Vectors] = collections.defaultdict(dict)  # by use
        self._sums: dict[int, _Vectors] = collections.defaultdict(dict)

    def connect(self, other: MeshEnd) -> None:
        """Opens the connection to another member, unless it is open."""
        for one, two in ((self, other), (other, self)):
            one._queues.setdefault(two, collections.deque())

    @property
    def reached(self) -> set[int]:
        """The other members to which there is a connection."""
        return {other._rank for other in self._queues}

    def begin(self, codes: _Vectors) -> None:
        """Sends each owner its share of this worker's codes."""
        self._is_open = True
        self._codes[self._use][self._rank] = codes[self._rank]
        for other, queue in self._queues.items():
            queue.append(("codes", self._use, codes[other._rank]))
        self._act()

    @property
    def failed(self) -> bool:
        """Whether the use under way, or the next one, does not end."""
        return self.is_over

    def results(self) -> dict[int, np.ndarray] | None:
        """Returns the sums of all owners; None until they are there."""
        sums = self._sums[self._use]
        if len(sums) < len(self._members) or len(self._codes[self._use]) < len(self._members):
            return None
        del self._sums[self._use], self._codes[self._use]
        self._use, self._is_open = self._use + 1, False
        return sums

    def end(self, drawn: Callable[[int], int]) -> None:
        """Ends; of n messages that were not delivered to another member, `drawn(n)` arrive."""
        if not self.is_over:
            self.is_over = True
            for queue in self._queues.values():
                kept = drawn(len(queue))
                while len(queue) > kept:
                    queue.pop()

    def arriving(self, reaches: Callable[[int, int], bool]) -> Iterator[Callable[[], None]]:
        """Yields what can happen: messages that arrive, and ends of connections."""
        for other, queue in self._queues.items():
            news = queue or (self.is_over and self._rank not in other._ended)
            if news and not other.is_over and reaches(self._rank, other._rank):
                yield functools.partial(self._deliver, other)

    def _deliver(self, other: MeshEnd) -> None:
        queue = self._queues[other]
        if other.is_over:
            return
        if queue:
            other._take(self._rank, *queue.popleft())
        elif self.is_over:
            other._ended.add(self._rank)
        other._act()

    def _take(self, member: int, kind: str, use: int, values: np.ndarray) -> None:
        (self._codes if kind == "codes" else self._sums)[use][member] = values

    def _act(self) -> None:
        """Adds when all codes are there; fails where a member has ended that is missing."""
        codes, sums = self._codes[self._use], self._sums[self._use]
        if self._is_open and len(codes) == len(self._members) and self._rank not in sums:
            sums[self._rank] = sum(codes.values())
            for queue in self._queues.values():
                queue.append(("sums", self._use, sums[self._rank]))
        missing = {each for each in self._ended if each not in codes or each not in sums}
        if self._is_open and missing:
            self.end(lambda count: count // 2)


class MeshWorker(SimulatedWorker):
    """One process of a worker, which makes its steps by a mesh.

    Attributes:
      mesh: its end of that of the last view.
    """

    def __init__(self, *given: object, meshes: dict, seed: int, **more: object) -> None:
        """See base class.

        Args:
          *given: see base class.
          meshes: ends of all meshes, by view and worker; shared by all workers.
          seed: decides what arrives of what is dropped.
          **more: see base class.
        """
        super().__init__(*given, **more, servers_add=False)
        self.mesh = MeshEnd(self.rank, (self.rank,))
        self.mesh.is_over = True
        self._meshes, self._random = meshes, random.Random(seed)
        self._ends_at: float | None = None
        self._reaches = more["reaches"]

    def poll(self) -> None:
        """Acts on time-outs."""
        if self._ends_at is not None and self._clock() > self._ends_at:
            self.mesh.end(self.some)

    def some(self, count: int) -> int:
        """Draws how many of some messages arrive."""
        return self._random.randint(0, count)

    def _declare(self) -> None:
        """Declares nothing to a ps."""

    def _begin(self) -> None:
        """See base class."""
        self._client.steps.delegate(self._end_soon)

    def _end_soon(self) -> None:
        if self._ends_at is None:
            self._ends_at = self._clock()

    def _leave(self) -> None:
        """See base class."""
        self.mesh.end(lambda count: count)

    def _enter(self, view: View) -> Waits[None]:
        """See base class."""
        members = groups.unpack(view.members)
        yield from self._gather("mesh", b"port")
        ends = self._meshes.setdefault(view.SerializeToString(), {})
        mesh = ends[self.rank] = MeshEnd(self.rank, members)
        others, deadline = {*members} - {self.rank}, self._clock() + 2 * self._timeout_secs
        try:
            while mesh.reached < others and self._clock() < deadline:
                for worker, other in ends.items():
                    if worker != self.rank and not other.is_over and self._reaches(worker):
                        mesh.connect(other)
                self._coordination.check()
                yield
            reported = json.dumps(sorted(others - mesh.reached)).encode()
            found = yield from self._wait(self._coordination.ask_values("mesh is there", reported))
        except BaseException:
            mesh.end(self.some)
            raise
        left = leavers({each: json.loads(found[each]) for each in found}, view.coordinator)
        while left:
            mesh.end(self.some)
            if self.rank in left:
                self._coordination.leave_others()
                self._client.close(is_done=False)
                self.ending = LEFT
            self._coordination.check()
            yield
        self.mesh, self._ends_at = mesh, None
        if self._client.steps.interrupted:
            self._end_soon()

    def _exchange(self, step: int) -> Waits[list[Result] | None]:
        """See base class."""
        del step
        owners, mesh = groups.unpack(self._view.members), self.mesh
        if mesh.failed:
            return None
        codes = (gradient(self.rank, self.state, i, self._workers) for i in range(len(owners)))
        mesh.begin(dict(zip(owners, codes, strict=True)))
        while (sums := mesh.results()) is None:
            if mesh.failed:
                return None
            yield
        return [(sums[owner], int(np.count_nonzero(sums[owner]))) for owner in owners]

    def _commit(self, step: int) -> bool:
        """See base class; what a worker has all sums of, it may always make."""
        if not self._client.steps.commit(step):
            self.mesh.end(lambda count: count)
        return True
