"""Which view each worker is in, as the workers themselves report it to a ps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from terngrad.exchange.parameter_server.server.catalogue import PushError


@dataclasses.dataclass(frozen=True)
class ReportedView:
    """A view as a worker reports it; the same number with other members is another view.

    Attributes:
      number: number of the view; 0 = none.
      members: its members.
      coordinator: the ps that made it.
    """

    number: int = 0
    members: tuple[int, ...] = ()
    coordinator: int = 0


_NONE = ReportedView()


class WorkerViews:
    """The view of each worker; not safe for threads.

    Two workers are in the same view only if both report the same number and members and are among
    these. So one worker alone cannot make a view that needs another.
    """

    def __init__(self, workers: int, needed: int = 1) -> None:
        """Starts with no worker in a view; `needed` of the members make a step."""
        self._needed = needed
        self._views = [_NONE] * workers
        # By worker: those that were in its view since it entered it.
        self._entered = [frozenset[int]()] * workers
        self._staying: dict[ReportedView, set[int]] = {}  # members that have not left
        self._connected: set[int] = set()  # connected workers

    def __getitem__(self, worker: int) -> ReportedView:
        """Returns a worker's view."""
        return self._views[worker]

    def connect(self, worker: int) -> None:
        """Notes that a worker has connected: it may enter a view that others are in."""
        self._connected.add(worker)

    def enter(self, worker: int, view: ReportedView) -> frozenset[int]:
        """Moves a worker to a later view; views in which no worker is left are over.

        Returns:
          The workers that are in the view now.

        Raises:
          PushError: the view is not later, or the worker is not a member.
        """
        if view.number <= (last := self._views[worker].number):
            raise PushError(f"view is {view.number}; allowed is from {last + 1} on")
        if worker not in view.members:
            raise PushError(f"members of view {view.number} are {list(view.members)}, without it")
        self._leave_view(worker)
        self._connected.add(worker)
        # One object for all: comparing equal tuples of many members would take time in each push.
        view = next((each for each in self._views if each == view), view)
        self._views[worker] = view
        self._staying.setdefault(view, {*view.members}).add(worker)
        self._staying = {each: s for each, s in self._staying.items() if each in self._views}
        present = frozenset(w for w, each in enumerate(self._views) if each == view)
        for each in present:
            self._entered[each] |= present
        return present

    @property
    def connected(self) -> list[int]:
        """Connected workers, in ascending order."""
        return sorted(self._connected)

    def newest(self) -> ReportedView:
        """Returns the newest view that workers are in; number 0 if there is none."""
        return max(self._views, key=lambda view: view.number)

    def disconnect(self, worker: int) -> None:
        """Notes that a worker's stream has ended."""
        self._connected.discard(worker)
        self._leave_view(worker)

    def staying(self, view: ReportedView) -> set[int]:
        """Returns the connected members that are in a view or may still enter it."""
        return self._connected & self._staying.get(view, set())

    def have_all(self, worker: int, contributors: Iterable[int]) -> bool:
        """Returns whether all contributors to a step are in a worker's view.

        Raises:
          PushError: they are too few, or some never were since the worker entered it.
        """
        view, wanted = self._views[worker], {*contributors}
        if len(wanted) < (least := min(self._needed, len(view.members))):
            raise PushError(f"contributors are {sorted(wanted)}; a step needs at least {least}")
        if absent := sorted(wanted - self._entered[worker]):
            raise PushError(f"contributors {absent} are not in view {view.number}")
        return all(self._views[each] == view for each in wanted)

    def _leave_view(self, worker: int) -> None:
        left, self._views[worker] = self._views[worker], _NONE
        self._entered[worker] = frozenset()
        staying = self._staying.get(left, set())
        staying.discard(worker)
        if not staying:
            self._staying.pop(left, None)
