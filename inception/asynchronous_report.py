"""What a ps of asynchronous training says of its work: lines of its log, and TensorBoard's figures.

All of them are of the time since the last such line.
"""

import os
from collections.abc import Callable

import tensorflow as tf

from terngrad.exchange.parameter_server.asynchronous.figures import Report, WorkerFigures
from terngrad.exchange.parameter_server.asynchronous.server import Server
from terngrad.exchange.parameter_server.asynchronous.staleness import Staleness

_MEGA = 1e6


class AsynchronousReport:
    """Reports, if gradients have come."""

    def __init__(self, server: Server, tell: Callable[[str], None], directory: str | None) -> None:
        """Writes event files into `directory`, if there is one, from the first update on."""
        self._server, self._tell = server, tell
        self._directory = directory
        self._writer: tf.summary.SummaryWriter | None = None

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
        if self._directory:
            self._write(found, staleness, step)

    def _write(self, found: Report, staleness: Staleness, step: int) -> None:
        if self._writer is None:
            os.makedirs(self._directory, exist_ok=True)
            self._writer = tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step):
            tf.summary.scalar("ps/steps_per_sec", found.updates / found.seconds)
            tf.summary.scalar("ps/staleness/mean", staleness.mean)
            tf.summary.scalar("ps/staleness/max", staleness.largest)
            for i, worker in enumerate(found.workers):
                tf.summary.scalar(f"ps/steps_per_sec/{i}", worker.updates / found.seconds)
                tf.summary.scalar(f"ps/bytes_in_per_sec/{i}", worker.bytes_in / found.seconds)
                tf.summary.scalar(f"ps/bytes_out_per_sec/{i}", worker.bytes_out / found.seconds)
                tf.summary.scalar(f"ps/held_secs/{i}", worker.held_secs)
                tf.summary.scalar(f"ps/dropped_gradients/{i}", worker.dropped)
        self._writer.flush()


def _text(index: int, worker: WorkerFigures) -> str:
    dropped = f", {worker.dropped} too late" if worker.dropped else ""
    return (
        f"worker {index}: {worker.updates} updates{dropped}, {worker.bytes_in / _MEGA:.1f} MB in, "
        f"{worker.bytes_out / _MEGA:.1f} MB out, held for {worker.held_secs:.1f} s"
    )
