"""A simulated all-reduce that goes on: each worker has a ps, and the coordinator moves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from terngrad.connect.introduction import COORDINATION, EXCHANGE
from terngrad.service.messages import View
from terngrad.testing.simulation.cluster import LONG_SECS, Event, SimulatedCluster
from terngrad.testing.simulation.laws import Ledger, require
from terngrad.testing.simulation.mesh import LEFT, MeshEnd, MeshWorker
from terngrad.testing.simulation.worker import SimulatedWorker

_STEPS = 20  # so that workers come back, and are lost again
RETURN_SECS = 1.0
_WAIT_SECS = 150.0  # longer than any fault of a history
_GOOD_ENDINGS = {"done", "dismissed", "a ps cannot be reached", LEFT}
_MAX_LATE = 1  # step that a worker may still make when others are in a later view


class SingleGroupLedger(Ledger):
    """Also checks that only one group continues a training where the network is partitioned."""

    def __init__(self, workers: Sequence[SimulatedWorker | None]) -> None:
        """Starts without steps; `workers` are those that have not been killed."""
        super().__init__()
        self._workers = workers
        self._newest = 0  # view in which a step was made
        self._makers: set[SimulatedWorker] = set()  # processes that have made one in it
        self._late: dict[tuple[int, int], int] = {}  # steps in an older one, by worker and view

    def note_step(self, worker: int, view: View) -> None:
        """Notes a step of a worker."""
        running = {each for each in self._workers if each and not each.ending}
        if view.number > self._newest or not self._makers & running:
            self._newest, self._makers = view.number, set()
        if view.number == self._newest:
            self._makers.add(self._workers[worker])
            return
        made = self._late[worker, view.number] = self._late.get((worker, view.number), 0) + 1
        text = f"worker {worker} made {made} steps in view {view.number}, others one in"
        require(made <= _MAX_LATE, f"{text} {self._newest}")


class OwnServersCluster(SimulatedCluster):
    """Workers that each have a ps, which ends with its worker."""

    def __init__(
        self, workers: int, needed: int, seed: int, steps: int = _STEPS, *, has_mesh: bool = True
    ) -> None:
        """Starts no process; `seed` decides the order of events.

        Without `has_mesh` the ps add.
        """
        self._has_mesh = has_mesh
        rules = {"return_secs": RETURN_SECS, "coordinator_moves": True, "wait_secs": _WAIT_SECS}
        self._meshes: dict[bytes, dict[int, MeshEnd]] = {}  # by view, worker
        super().__init__(workers, workers, needed, True, seed, steps, **rules)
        self._ledger = SingleGroupLedger(self.workers)
        self._sides: list[int] = [0] * workers  # of the network, by host
        self._stateful: set[int] | None = None  # workers that had the state when the first failed

    def start_worker(self, rank: int) -> None:
        """Starts a worker and its ps unless they run."""
        worker = self.workers[rank]
        if worker and (not worker.ending or any(link.is_up for link in worker.network.links)):
            return
        if self.servers[rank].service is None:
            self.servers[rank].start()
        reaches = lambda ps: self._sides[ps] == self._sides[rank]
        self.workers[rank] = self._new_worker(rank, return_secs=RETURN_SECS, reaches=reaches)

    def _new_worker(self, rank: int, **more: Any) -> SimulatedWorker:
        if not self._has_mesh:
            return super()._new_worker(rank, **more)
        seed = self._random.randrange(1 << 30)
        return super()._new_worker(rank, kind=MeshWorker, meshes=self._meshes, seed=seed, **more)

    def kill_worker(self, rank: int, kept: int, has_saved: bool) -> None:
        """Kills a worker, and its ps with it."""
        if (worker := self.workers[rank]) is None or worker.ending:
            return
        super().kill_worker(rank, kept, has_saved)
        for ends in self._meshes.values():
            if rank in ends:
                ends[rank].end(lambda count: min(count, kept))
        self.kill_ps(rank, kept)

    def start_ps(self, ps: int) -> None:
        """Starts none: a ps starts with its worker."""

    def kill_coordinator(self, kept: int, has_saved: bool) -> None:
        """Kills the worker whose ps coordinates, and both with it."""
        views = [
            ps.service and ps.service.coordinator and ps.service.coordinator.view_number
            for ps in self.servers
        ]
        self.kill_worker(max(range(len(views)), key=lambda rank: views[rank] or 0), kept, has_saved)

    def freeze(self, rank: int) -> None:
        """Stops a worker and its ps, as a machine that hangs does."""
        self.stop(rank)
        self.stop_ps(rank)

    def thaw(self, rank: int) -> None:
        """Lets a frozen machine go on."""
        self.wake(rank)
        self.wake_ps(rank)

    def partition(self, others: Collection[int]) -> None:
        """Partitions the network: these hosts no longer reach the others, who notice it later."""
        self._sides = [int(rank in others) for rank in range(len(self.workers))]
        for rank, side in enumerate(self._sides):
            for ps, other in enumerate(self._sides):
                if side != other:
                    for purpose in (COORDINATION, EXCHANGE):
                        self.stick(rank, ps, purpose)

    def release(self) -> None:
        """Ends all faults of the network."""
        self._sides = [0] * len(self.workers)
        super().release()

    def _arriving(self) -> Iterator[Event]:
        yield from super()._arriving()
        reaches = lambda a, b: self._sides[a] == self._sides[b] and b not in self._stopped
        for ends in self._meshes.values():
            for end in ends.values():
                yield from end.arriving(reaches)

    def _tick(self) -> None:
        super()._tick()
        for worker in self.workers:
            if isinstance(worker, MeshWorker) and worker.rank not in self._stopped:
                worker.poll()
        for view in [view for view, ends in self._meshes.items() if _are_over(ends.values())]:
            del self._meshes[view]

    def check(self) -> None:
        """See base class."""
        super().check()
        for rank, worker in enumerate(self.workers):
            if worker and worker.ending not in ("", "done", "dismissed"):
                if self._stateful is None:
                    self._stateful = {w.rank for w in self.workers if w and w.has_state}
                self.kill_ps(rank, 0)  # its process ends with that of a worker that fails

    def _check_stall(self) -> None:
        """Where another ps may coordinate, none of them knows all."""

    def _check_saver(self, saver: SimulatedWorker) -> None:
        """See `_check_stall`."""

    @property
    def _dispensable(self) -> set[int]:
        return {*range(len(self.servers))}

    def _check_ending(self) -> None:
        """Workers that were in a view have made all steps: each fault has ended.

        Others may not have found the first worker, without which no training begins.
        """
        well = {rank for rank, secs in enumerate(self._out_secs) if secs < LONG_SECS}
        is_stateless = self._stateful is not None and not self._stateful & well
        if self._may_fail or not well or is_stateless:
            return
        for worker in self.workers:
            if worker and worker.is_live:
                history = self.describe()
                # All others were done, and have ended, before it was here again.
                is_late = self._some_are_done and worker.ending.endswith("did not come back")
                good = is_late or worker.ending in _GOOD_ENDINGS
                require(good, f"worker {worker.rank} failed: {history}")
                done = worker.ending != "done" or worker.state.steps == self._steps
                require(
                    done, f"worker {worker.rank} is done at step {worker.state.steps}: {history}"
                )


def _are_over(ends: Collection[MeshEnd]) -> bool:
    return all(end.is_over for end in ends)
