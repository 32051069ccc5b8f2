"""What a parameter server says of its work: lines of its log, and figures for TensorBoard."""

import time
from collections.abc import Callable, Sequence

from inception.results.ps_figures import FigureWriter
from terngrad.cluster.channel import name_of
from terngrad.exchange.parameter_server.server.figures import Report, WorkerFigures
from terngrad.exchange.parameter_server.server.server import Server

_MEGA = 1e6


class PsReport:
    """Reports every now and then, if steps were made."""

    def __init__(
        self,
        server: Server,
        name: str,
        worker_hosts: Sequence[str],
        every_secs: float,
        directory: str | None,
        tell: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Writes event files into `directory`, if there is one, from the first step on.

        `tell` takes lines of the log.
        """
        self._server = server
        self._name = name
        self._hosts = worker_hosts
        self._every_secs = every_secs
        self._figures = FigureWriter(directory, tell)
        self._tell = tell
        self._clock = clock
        self._due = clock() + every_secs

    def beat(self) -> None:
        """To be called often; reports when it is time."""
        if self._clock() >= self._due:
            self._due = self._clock() + self._every_secs
            self.report()

    def report(self) -> None:
        """Reports now."""
        found = self._server.figures.report()
        if found.steps:
            self._tell(self._line(found))
            self._figures.write(self._scalars(found), found.step)

    def _line(self, found: Report) -> str:
        held = f"{self._server.aggregator.held_bytes / _MEGA:.1f} MB are held"
        rate = lambda octets: f"{octets / _MEGA / found.seconds:.2f}"
        workers = (
            f"worker {i}: {rate(worker.bytes_in)} MB/s in, {rate(worker.bytes_out)} out, "
            f"{_took_part(worker, found)}"
            for i, worker in enumerate(found.workers)
        )
        last = "" if found.latest is None else f"; last comes {name_of(found.latest, self._hosts)}"
        return (
            f"{self._name}: step {found.step}, {found.steps / found.seconds:.1f} steps/s, {held}; "
            f"{'; '.join(workers)}{last}{self._dropped()}."
        )

    def _dropped(self) -> str:
        dropped = self._server.dropped
        if not dropped:
            return ""
        each = ", ".join(f"{count} of worker {worker}" for worker, count in sorted(dropped.items()))
        return f"; gradients that came too late: {each}"

    def _scalars(self, found: Report) -> dict[str, float]:
        scalars = {
            "ps/steps_per_sec": found.steps / found.seconds,
            "ps/held_mb": self._server.aggregator.held_bytes / _MEGA,
        }
        for i, worker in enumerate(found.workers):
            scalars[f"ps/bytes_in_per_step/{i}"] = worker.bytes_in / found.steps
            scalars[f"ps/bytes_out_per_step/{i}"] = worker.bytes_out / found.steps
            scalars[f"ps/late_ms/{i}"] = 1e3 * worker.mean_late_secs
            scalars[f"ps/share_of_steps/{i}"] = min(1.0, worker.steps / found.steps)
            if self._server.coordinator:  # which alone knows
                scalars[f"ps/dropped_gradients/{i}"] = self._server.dropped.get(i, 0)
        return scalars


def _took_part(worker: WorkerFigures, found: Report) -> str:
    """By how much a worker came after the first, of the steps that it took part in."""
    late = f"{1e3 * worker.mean_late_secs:.1f} ms after the first"
    if found.steps - worker.steps <= 1:  # 1: it is under way
        return late
    part = f"in {worker.steps} of {found.steps} steps"
    return f"{part}, {late}" if worker.steps else part
