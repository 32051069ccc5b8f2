"""Which view each worker is in, as the workers themselves report it to a ps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from terngrad.exchange.parameter_server.server.catalogue import PushError


@dataclasses.dataclass(frozen=True)
class Entry:
    """A view as a worker reports it; the same number with other members is another view.

    Attributes:
      number: number of the view; 0 = none.
      members: its members.
      coordinator: the ps that made it.
    """

    number: int = 0
    members: tuple[int, ...] = ()
    coordinator: int = 0


_NONE = Entry()


class Entries:
    """The view of each worker; not safe for threads.

    Two workers are in the same view only if both report the same number and members and are among
    these. So one worker alone cannot make a view that needs another.
    """

    def __init__(self, workers: int, needed: int = 1) -> None:
        """Starts with no worker in a view; `needed` of the members make a step."""
        self._needed = needed
        self._entries = [_NONE] * workers
        self._met = [frozenset[int]()] * workers
        self._staying: dict[Entry, set[int]] = {}  # members that have not left
        self._here: set[int] = set()  # connected workers

    def __getitem__(self, worker: int) -> Entry:
        """Returns a worker's view."""
        return self._entries[worker]

    def connect(self, worker: int) -> None:
        """Notes that a worker has connected: it may enter a view that others are in."""
        self._here.add(worker)

    def enter(self, worker: int, entry: Entry) -> frozenset[int]:
        """Moves a worker to a later view; views in which no worker is left are over.

        Returns:
          The workers that are in the view now.

        Raises:
          PushError: the view is not later, or the worker is not a member.
        """
        if entry.number <= (last := self._entries[worker].number):
            raise PushError(f"view is {entry.number}; allowed is from {last + 1} on")
        if worker not in entry.members:
            raise PushError(f"members of view {entry.number} are {list(entry.members)}, without it")
        self._leave_view(worker)
        self._here.add(worker)
        self._entries[worker] = entry
        self._staying.setdefault(entry, {*entry.members}).add(worker)
        self._staying = {each: s for each, s in self._staying.items() if each in self._entries}
        present = frozenset(w for w, each in enumerate(self._entries) if each == entry)
        for each in present:
            self._met[each] |= present
        return present

    @property
    def connected(self) -> list[int]:
        """Connected workers, in ascending order."""
        return sorted(self._here)

    def newest(self) -> Entry:
        """Returns the newest view that workers are in; number 0 if there is none."""
        return max(self._entries, key=lambda entry: entry.number)

    def disconnect(self, worker: int) -> None:
        """Notes that a worker's stream has ended."""
        self._here.discard(worker)
        self._leave_view(worker)

    def staying(self, entry: Entry) -> set[int]:
        """Returns the connected members that are in a view or may still enter it."""
        return self._here & self._staying.get(entry, set())

    def have_all(self, worker: int, contributors: Iterable[int]) -> bool:
        """Returns whether all contributors to a step are in a worker's view.

        Raises:
          PushError: they are too few, or some never were since the worker entered it.
        """
        entry, wanted = self._entries[worker], {*contributors}
        if len(wanted) < (least := min(self._needed, len(entry.members))):
            raise PushError(f"contributors are {sorted(wanted)}; a step needs at least {least}")
        if absent := sorted(wanted - self._met[worker]):
            raise PushError(f"contributors {absent} are not in view {entry.number}")
        return all(self._entries[each] == entry for each in wanted)

    def _leave_view(self, worker: int) -> None:
        left, self._entries[worker] = self._entries[worker], _NONE
        self._met[worker] = frozenset()
        staying = self._staying.get(left, set())
        staying.discard(worker)
        if not staying:
            self._staying.pop(left, None)
