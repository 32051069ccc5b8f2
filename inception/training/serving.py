"""A parameter server (ps): --job_name=ps of the *_distributed_train programs.

Its reports are lines of the log, and figures for TensorBoard.
"""

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception.cluster.joining import join_config, log_hosts
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training.learning_rate import read_schedule
from terngrad.asynchronous.server import Server as AsynchronousServer
from terngrad.cluster.addresses import name_of
from terngrad.connect.calling import ps_name
from terngrad.exchange.parameter_server.server.server import Server as SynchronousServer
from terngrad.library import serving
from terngrad.library.serving import Asynchronous
from terngrad.service.figures import IntervalFigures, WorkerFigures
from terngrad.training import runtime

Server = SynchronousServer | AsynchronousServer

_REPORT_SECS = 30.0
_MEGA = 1e6


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until the workers need no ps any more, or a signal arrives; see `serving.serve`."""
    log_hosts(cluster)
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
    )
    folder = os.path.join(config.train_dir, f"ps_{cluster.task_id}")
    asynchronous = None
    if not cluster.cross_replica_sync:
        steps, chosen = cluster.ps_snapshot_steps, cluster.ps_snapshot
        asynchronous = Asynchronous(read_schedule, config.train_dir, steps, chosen)

    def make_report(server: Server) -> PsReport:
        name = ps_name(cluster.task_id, cluster.ps_hosts)
        directory = folder if config.save_summaries_secs else None
        if asynchronous:
            figures = functools.partial(figures_of_parameters, server)
        else:
            figures = functools.partial(figures_of_sums, server, cluster.worker_hosts)
        return PsReport(figures, name, _REPORT_SECS, directory, serving.say)

    serving.serve(join_config(cluster), asynchronous, make_report)


class PsFigures(NamedTuple):
    """A report: a line without the name of the ps, and scalars of a step."""

    line: str
    step: int
    scalars: Mapping[str, float]


class PsReport:
    """Reports at regular intervals, if there is something to report."""

    def __init__(
        self,
        figures: Callable[[], PsFigures | None],
        name: str,
        every_secs: float,
        directory: str | None,
        log: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does not report yet.

        Args:
          figures: returns a report of the time since it was last called; see `figures_of_sums`,
            `figures_of_parameters`.
          name: name of the ps.
          every_secs: seconds between two reports.
          directory: folder for event files, made at the first report; None = no event files.
          log: called with each line.
          clock: returns the seconds since any fixed moment.
        """
        self._figures, self._name, self._every_secs = figures, name, every_secs
        self._directory, self._log, self._clock = directory, log, clock
        self._writer: tf.summary.SummaryWriter | None = None
        self._due = clock() + every_secs

    def beat(self) -> None:
        """Reports if a report is due; to be called often."""
        if self._clock() >= self._due:
            self._due = self._clock() + self._every_secs
            self.report()

    def report(self) -> None:
        """Reports now."""
        if found := self._figures():
            self._log(f"{self._name}: {found.line}")
            self._write(found)

    def _write(self, found: PsFigures) -> None:
        """Writes scalars; stops writing after an error, which does not end the training."""
        if not self._directory:
            return
        try:
            if self._writer is None:
                os.makedirs(self._directory, exist_ok=True)
                self._writer = tf.summary.create_file_writer(self._directory)
            with self._writer.as_default(found.step):
                for name, value in found.scalars.items():
                    tf.summary.scalar(name, value)
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            why = " ".join(str(error).split())
            self._log(f"No more figures are written to {self._directory}: {why}")
            self._directory = None


def figures_of_sums(server: SynchronousServer, worker_hosts: Sequence[str]) -> PsFigures | None:
    """Returns the steps of a ps that adds gradients, and the worker that the others wait for."""
    found = server.figures.report()
    if not found.steps:
        return None
    held_mb = server.aggregator.memory_bytes / _MEGA
    rate = lambda octets: f"{octets / _MEGA / found.seconds:.2f}"
    workers = (
        f"worker {i}: {rate(worker.bytes_in)} MB/s in, {rate(worker.bytes_out)} out, "
        f"{_took_part(worker, found)}"
        for i, worker in enumerate(found.workers)
    )
    last = "" if found.slowest is None else f"; slowest: {name_of(found.slowest, worker_hosts)}"
    dropped = server.dropped
    each = ", ".join(f"{count} of worker {worker}" for worker, count in sorted(dropped.items()))
    too_late = f"; gradients that came too late: {each}" if each else ""
    sessions = server.idle_sessions
    each = ", ".join(f"worker {worker} ({count})" for worker, count in sorted(sessions.items()))
    idle = f"; sessions without a contribution: {each}" if each else ""
    lost = f"; without ps {', '.join(map(str, server.lost_ps))}" if server.lost_ps else ""
    line = (
        f"step {found.step}, {found.steps / found.seconds:.1f} steps/s, "
        f"{held_mb:.1f} MB of pushes and results in memory; "
        f"{'; '.join(workers)}{last}{too_late}{idle}{lost}."
    )
    scalars = {"ps/steps_per_sec": found.steps / found.seconds, "ps/held_mb": held_mb}
    if server.coordinator:  # only its ps knows these and the next
        scalars["ps/lost_ps"] = len(server.lost_ps)
    for i, worker in enumerate(found.workers):
        scalars[f"ps/bytes_in_per_step/{i}"] = worker.bytes_in / found.steps
        scalars[f"ps/bytes_out_per_step/{i}"] = worker.bytes_out / found.steps
        scalars[f"ps/late_ms/{i}"] = 1e3 * worker.mean_late_secs
        scalars[f"ps/share_of_steps/{i}"] = min(1.0, worker.steps / found.steps)
        if server.coordinator:
            scalars[f"ps/dropped_gradients/{i}"] = dropped.get(i, 0)
            scalars[f"ps/idle_sessions/{i}"] = sessions.get(i, 0)
    return PsFigures(line, found.step, scalars)


def _took_part(worker: WorkerFigures, found: IntervalFigures) -> str:
    """Returns how long after the first worker this one pushed, and its share of the steps."""
    late = f"{1e3 * worker.mean_late_secs:.1f} ms after the first"
    if found.steps - worker.steps <= 1:  # 1: its push may be in progress
        return late
    part = f"in {worker.steps} of {found.steps} steps"
    return f"{part}, {late}" if worker.steps else part


def figures_of_parameters(server: AsynchronousServer) -> PsFigures | None:
    """Returns the updates of a ps that holds parameters, their staleness, and workers' waits."""
    found = server.workers.figures.report()
    staleness = server.store.take_staleness()
    if not (found.steps or found.dropped):
        return None
    rate = found.steps / found.seconds
    step = server.store.version
    workers = "; ".join(
        f"worker {i}: {worker.steps} updates"
        f"{f', {worker.dropped} too late' if worker.dropped else ''}, "
        f"{worker.bytes_in / _MEGA:.1f} MB in, {worker.bytes_out / _MEGA:.1f} MB out, "
        f"blocked for {worker.blocked_secs:.1f} s"
        for i, worker in enumerate(found.workers)
    )
    line = (
        f"step {step} ({rate:.1f} updates/sec), staleness mean {staleness.mean:.2f} max "
        f"{staleness.largest}; {workers}"
    )
    scalars = {
        "ps/steps_per_sec": rate,
        "ps/staleness/mean": staleness.mean,
        "ps/staleness/max": staleness.largest,
    }
    for i, worker in enumerate(found.workers):
        scalars[f"ps/steps_per_sec/{i}"] = worker.steps / found.seconds
        scalars[f"ps/bytes_in_per_sec/{i}"] = worker.bytes_in / found.seconds
        scalars[f"ps/bytes_out_per_sec/{i}"] = worker.bytes_out / found.seconds
        scalars[f"ps/blocked_secs/{i}"] = worker.blocked_secs
        scalars[f"ps/dropped_gradients/{i}"] = worker.dropped
    return PsFigures(line, step, scalars)
