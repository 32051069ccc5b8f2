"""A coordinator whose workers only record its orders."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from terngrad.coordination import groups
from terngrad.coordination.coordinator import Coordinator
from terngrad.coordination.states import Rules
from terngrad.service.messages import Order, Report, View

SECS = 10.0  # for which a worker may be lost


class CoordinatedWorkers:
    """Workers in virtual time.

    Attributes:
      coordinator: decides which of them train.
      now: seconds of its clock.
      lines: its log.
      orders: those that it has sent each worker since `taken` was last called.
      dropped: workers whose streams it has ended.
    """

    def __init__(
        self,
        workers: int = 3,
        needed: int | None = None,
        servers: int = 1,
        wall_clock: Callable[[], float] = time.time,
        *,
        elastic: bool = False,
        **rules: Any,
    ) -> None:
        """Starts without connected workers."""
        self.now = 0.0
        self.lines: list[str] = []
        self.orders: dict[int, list[Order]] = {worker: [] for worker in range(workers)}
        self.dropped: list[int] = []
        self.coordinator = Coordinator(
            [f"host{i}:1" for i in range(workers)],
            Rules(needed or workers, elastic, SECS, **rules),
            lambda worker, order: self.orders[worker].append(order),
            self.dropped.append,
            self.lines.append,
            lambda: self.now,
            wall_clock,
            servers,
        )

    @property
    def outcome(self) -> str | None:
        """See `Coordinator`."""
        return self.coordinator.outcome

    def connect(self, *workers: int) -> None:
        """Opens the workers' streams."""
        for worker in workers:
            self.coordinator.connect(worker)

    def lose(self, worker: int, why: str = "died", silent_secs: float = 0.0) -> None:
        """Ends a worker's stream."""
        self.coordinator.disconnect(worker, why, silent_secs)

    def reconnect(self, worker: int) -> None:
        """Ends a worker's stream and opens another."""
        self.lose(worker)
        self.connect(worker)

    def join(self, *workers: int, steps: int = 0) -> None:
        """Opens the workers' streams; each reports the state of a checkpoint."""
        for worker in workers:
            self.connect(worker)
            self.report(worker, steps)

    def begin(self, *workers: int, steps: int = 0) -> dict[int, list[Any]]:
        """All of the workers join, the chief with so many steps; returns their orders."""
        self.connect(*workers)
        for worker in workers:
            self.report(worker, steps if worker == 0 else 0)
        return self.taken()

    def send(self, worker: int, **what: Any) -> None:
        """Sends a message of a worker."""
        self.coordinator.handle(worker, Report(**what))

    def report(
        self, worker: int, steps: int = 0, view: View | None = None, *, is_live: bool = False
    ) -> None:
        """Reports the state of a worker, and its last view."""
        last = {"view": view.number, "members": view.members} if view else {}
        self.send(worker, state_report={"steps": steps, "is_live": is_live, **last})

    def report_live(self, *workers: int, steps: int, view: View | None = None) -> None:
        """Reports the states of workers that have the state of the training."""
        for worker in workers:
            self.report(worker, steps, view, is_live=True)

    def give(self, worker: int, name: str, content: bytes, round_: int = 0) -> None:
        """Sends a worker's value."""
        self.send(worker, value={"name": name, "content": content, "round": round_})

    def progress(self, worker: int, batches: int | None, operations: int = 0) -> None:
        """Reports the number of batches taken; None = the worker makes no steps now."""
        is_stepping = batches is not None
        progress = {"is_stepping": is_stepping, "batches": batches or 0, "operations": operations}
        self.send(worker, progress=progress)

    def begin_operation(self, worker: int, operations: int, last: str = "a step") -> None:
        """Reports how many operations with the others the worker has begun, and the last one."""
        self.send(worker, progress={"operations": operations, "operation": last, "alike": 1})

    def taken(self) -> dict[int, list[Any]]:
        """Returns the orders since the last call: names, or the views themselves."""
        found = {}
        for worker, orders in self.orders.items():
            if orders:
                kinds = [(order.WhichOneof("what"), order) for order in orders]
                found[worker] = [order.view if kind == "view" else kind for kind, order in kinds]
                orders.clear()
        return found

    def pass_secs(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds
        self.coordinator.watch()


def started_workers(workers: int, **rules: Any) -> tuple[CoordinatedWorkers, View]:
    """Returns workers that have all joined, and their first view."""
    cluster = CoordinatedWorkers(workers, **rules)
    (view,) = cluster.begin(*range(workers))[0]
    return cluster, view


def members(view: View) -> tuple[int, ...]:
    """The members of a view."""
    return groups.unpack(view.members)


def receivers(view: View) -> tuple[int, ...]:
    """The workers that get the state of another one."""
    return groups.unpack(view.receivers)
