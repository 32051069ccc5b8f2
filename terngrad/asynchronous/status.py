"""The status of a run at one ps."""

from __future__ import annotations

from typing import NamedTuple

from terngrad.service.messages import Reply


class RunStatus(NamedTuple):
    """The status of a run.

    Attributes:
      run: name of the run whose parameters the ps holds; "" for none.
      version: number of updates that the ps has applied.
      waits: whether worker 0 must first begin or confirm the run.
      finished: whether the run has all its updates.
    """

    run: str
    version: int
    waits: bool
    finished: bool


def status_in(reply: Reply) -> RunStatus:
    """Returns the status in a reply."""
    return RunStatus(reply.run, reply.version, reply.waits, reply.finished)
