"""Where a run is, as one ps knows it."""

from __future__ import annotations

from typing import NamedTuple

from terngrad.service.messages import Reply


class RunStatus(NamedTuple):
    """Where a run is.

    Attributes:
      run: whose parameters the ps holds; "" for none.
      version: updates that the ps has applied.
      waits: worker 0 must first begin, or confirm, the run.
      finished: the run has all its updates.
    """

    run: str
    version: int
    waits: bool
    finished: bool


def status_in(reply: Reply) -> RunStatus:
    """The status that a reply tells."""
    return RunStatus(reply.run, reply.version, reply.waits, reply.finished)
