"""When a ps writes snapshots, and how it loads them when it restarts."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from terngrad.asynchronous import snapshots
from terngrad.asynchronous.plan import PlanError
from terngrad.asynchronous.proposal import UNREADABLE, Proposal
from terngrad.asynchronous.updates import Updates

_NEVER = -math.inf
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 1.0, 30.0

Applied = Mapping[int, tuple[int, int]]  # by worker: its process, and the number of its last push


@dataclasses.dataclass(frozen=True)
class Keeping:
    """Where a ps writes snapshots, and how often.

    Attributes:
      folder: folder of this ps alone.
      steps: most updates after the last snapshot; 0 = no snapshots.
      chosen: snapshots of more updates than this are set aside first, see `snapshots.choose`; -1 =
        none.
    """

    folder: str
    steps: int
    chosen: int = -1


class Kept(NamedTuple):
    """A snapshot that this ps can load."""

    path: str
    proposal: Proposal
    applied: Applied
    content: bytes
    version: int


class Keeper:
    """Writes and reads the snapshots of one ps. Not for several threads at once.

    Attributes:
      failure: why the last attempt to write a snapshot failed; "" = it did not.
    """

    def __init__(
        self,
        keeping: Keeping,
        ps: int,
        ps_count: int,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keeps snapshots for ps `ps` of `ps_count`; `tell` is called with lines for the log.

        Raises:
          LookupError, OSError: see `snapshots.choose`.
        """
        self.failure = ""
        self._keeping, self._tell, self._clock = keeping, tell, clock
        self._place = {"ps": ps, "ps_count": ps_count}
        self._writer = snapshots.Writer(keeping.folder)
        self._kept_version: float = _NEVER
        self._pause_secs, self._retry_at = 0.0, 0.0
        if keeping.steps:
            snapshots.choose(keeping.folder, keeping.chosen, tell)

    def begin(self, kept_version: float = _NEVER) -> None:
        """Notes that the parameters were replaced; `kept_version` has a snapshot."""
        self._kept_version = kept_version

    def is_due(self, version: int) -> bool:
        """Returns whether another update would be one too many without a snapshot of `version`."""
        steps = self._keeping.steps
        return bool(steps) and version - self._kept_version >= steps

    def may_retry(self) -> bool:
        """Returns whether the pause after a failed attempt is over."""
        return self._clock() >= self._retry_at

    def keep(self, plan_text: str, applied: Applied, updates: Updates) -> None:
        """Writes a snapshot, unless this version has one or snapshots are off.

        A failure is told; the next attempt should wait for `may_retry`.
        """
        version = updates.version
        if not self._keeping.steps or version == self._kept_version:
            return
        description = self._place | {
            "applied": {str(worker): pair for worker, pair in applied.items()},
            "plan": plan_text,
        }
        state = updates.state()
        try:
            self._writer.save(version, description, state)
        except OSError as error:
            self.failure = f"no snapshot of step {version} could be written: {error}"
            self._pause_secs = min(
                max(_FIRST_PAUSE_SECS, 2 * self._pause_secs), _LONGEST_PAUSE_SECS
            )
            self._retry_at = self._clock() + self._pause_secs
            self._tell(f"Updates wait: {self.failure}; tries again in {self._pause_secs:g} s.")
            return
        if self.failure:
            self._tell(f"Wrote the snapshot of step {version}, and applies updates again.")
        self.failure, self._pause_secs, self._retry_at = "", 0.0, 0.0
        self._kept_version = version
        try:
            self._writer.reserve(len(state))
        except OSError as error:
            self._tell(f"There is no room for the snapshot after that of step {version}: {error}")

    def close(self) -> None:
        """Gives back the space that is reserved for the next snapshot."""
        self._writer.close()

    def newest(self, propose: Callable[[bytes], Proposal]) -> Kept | None:
        """Loads the newest undamaged snapshot, if this ps wrote it; `propose` reads its plan."""
        if not self._keeping.steps:
            return None
        for path, description, content in snapshots.undamaged(self._keeping.folder, self._tell):
            try:
                kept = self._read(path, description, content, propose)
            except UNREADABLE as error:
                self._tell(f"{path} is not used: {error}")
                return None
            if np.isfinite(np.frombuffer(content, "<f4")).all():
                return kept
            snapshots.set_aside(path, "it has values that are not finite", self._tell)
        return None

    def _read(
        self, path: str, description: dict, content: bytes, propose: Callable[[bytes], Proposal]
    ) -> Kept:
        """Reads a snapshot; raises one of `UNREADABLE` if it is not of this ps."""
        proposal = propose(description["plan"].encode())
        place = {name: description[name] for name in self._place}
        if place != self._place:
            raise PlanError(f"it was written by ps {place['ps']} of {place['ps_count']}")
        if len(content) != proposal.state_bytes:
            allowed = proposal.state_bytes
            raise PlanError(f"{len(content)} bytes of state; allowed are {allowed}")
        applied = {int(w): tuple(pair) for w, pair in description["applied"].items()}
        return Kept(path, proposal, applied, content, snapshots.version_of(path))
