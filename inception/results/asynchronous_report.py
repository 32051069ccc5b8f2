"""What a ps of asynchronous training says of its work: lines of its log, and TensorBoard's figures.

All of them are of the time since the last such line.
"""

from collections.abc import Callable

from inception.results.ps_figures import FigureWriter
from terngrad.asynchronous.figures import Report, WorkerFigures
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.staleness import Staleness

_MEGA = 1e6


class AsynchronousReport:
    """Reports, if gradients have come."""

    def __init__(self, server: Server, tell: Callable[[str], None], directory: str | None) -> None:
        """Writes event files into `directory`, if there is one, from the first update on."""
        self._server, self._tell = server, tell
        self._figures = FigureWriter(directory, tell)

    def report(self) -> None:
        """Reports now."""
        found = self._server.figures.report()
        staleness = self._server.store.take_staleness()
        if not (found.updates or found.dropped):
            return
        step = self._server.store.version
        rate = found.updates / found.seconds
        each = "; ".join(_text(i, worker) for i, worker in enumerate(found.workers))
        self._tell(
            f"step {step} ({rate:.1f} updates/sec), staleness mean {staleness.mean:.2f} max "
            f"{staleness.largest}; {each}"
        )
        self._figures.write(_scalars(found, staleness), step)


def _scalars(found: Report, staleness: Staleness) -> dict[str, float]:
    scalars = {
        "ps/steps_per_sec": found.updates / found.seconds,
        "ps/staleness/mean": staleness.mean,
        "ps/staleness/max": staleness.largest,
    }
    for i, worker in enumerate(found.workers):
        scalars[f"ps/steps_per_sec/{i}"] = worker.updates / found.seconds
        scalars[f"ps/bytes_in_per_sec/{i}"] = worker.bytes_in / found.seconds
        scalars[f"ps/bytes_out_per_sec/{i}"] = worker.bytes_out / found.seconds
        scalars[f"ps/held_secs/{i}"] = worker.held_secs
        scalars[f"ps/dropped_gradients/{i}"] = worker.dropped
    return scalars


def _text(index: int, worker: WorkerFigures) -> str:
    dropped = f", {worker.dropped} too late" if worker.dropped else ""
    return (
        f"worker {index}: {worker.updates} updates{dropped}, {worker.bytes_in / _MEGA:.1f} MB in, "
        f"{worker.bytes_out / _MEGA:.1f} MB out, held for {worker.held_secs:.1f} s"
    )
