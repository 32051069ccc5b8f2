"""When a ps writes snapshots, and how it loads them when it restarts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from terngrad.asynchronous import snapshots
from terngrad.asynchronous.plan import PlanError
from terngrad.asynchronous.proposal import UNREADABLE, Proposal
from terngrad.asynchronous.updates import Updates

Applied = Mapping[int, tuple[int, int]]  # by worker: its process, and the number of its last push


@dataclasses.dataclass(frozen=True)
class Keeping:
    """Where a ps writes snapshots, and the number of updates between two; 0 = no snapshots."""

    folder: str
    steps: int


class Kept(NamedTuple):
    """A snapshot that this ps can load."""

    path: str
    proposal: Proposal
    applied: Applied
    content: bytes
    version: int


class Keeper:
    """Writes and reads the snapshots of one ps. Not for several threads at once."""

    def __init__(
        self, keeping: Keeping, ps: int, ps_count: int, tell: Callable[[str], None]
    ) -> None:
        """Keeps snapshots for ps `ps` of `ps_count`; `tell` is called with lines for the log."""
        self._keeping, self._tell = keeping, tell
        self._place = {"ps": ps, "ps_count": ps_count}
        self._kept_version = -1

    def begin(self, kept_version: int = -1) -> None:
        """Notes that the parameters were replaced; `kept_version` has a snapshot (-1: none)."""
        self._kept_version = kept_version

    def is_due(self, version: int) -> bool:
        """Returns whether a snapshot is due at `version`."""
        steps = self._keeping.steps
        return bool(steps) and version - self._kept_version >= steps

    def keep(self, plan_text: str, applied: Applied, updates: Updates) -> None:
        """Writes a snapshot, unless this version has one or snapshots are off."""
        version = updates.version
        if not self._keeping.steps or version == self._kept_version:
            return
        description = self._place | {
            "applied": {str(worker): pair for worker, pair in applied.items()},
            "plan": plan_text,
        }
        try:
            snapshots.save(self._keeping.folder, version, description, updates.state())
        except OSError as error:
            self._tell(f"No snapshot of step {version} could be written: {error}")
        self._kept_version = version

    def newest(self, propose: Callable[[bytes], Proposal]) -> Kept | None:
        """Loads the newest undamaged snapshot, if this ps wrote it; `propose` reads its plan."""
        if not self._keeping.steps:
            return None
        path, description, content = snapshots.newest(self._keeping.folder, self._tell)
        if path is None:
            return None
        try:
            proposal = propose(description["plan"].encode())
            place = {name: description[name] for name in self._place}
            if place != self._place:
                raise PlanError(f"it was written by ps {place['ps']} of {place['ps_count']}")
            if len(content) != proposal.state_bytes:
                allowed = proposal.state_bytes
                raise PlanError(f"{len(content)} bytes of state; allowed are {allowed}")
            applied = {int(w): tuple(pair) for w, pair in description["applied"].items()}
        except UNREADABLE as error:
            self._tell(f"{path} is not used: {error}")
            return None
        return Kept(path, proposal, applied, content, snapshots.version_of(path))
