"""The log line of a training step, and the progress bar on a terminal."""

import datetime
import os
import sys

from rich import progress as rich_progress
from rich.table import Column

from terngrad.cluster import launched
from terngrad.training.timing import Progress


def timestamp(now: datetime.datetime | None = None) -> str:
    """Returns the time as 2026-01-31 12:00:00.123456, microseconds included even when 0."""
    return (now or datetime.datetime.now()).isoformat(sep=" ", timespec="microseconds")


def step_line(
    progress: Progress, now: datetime.datetime | None = None, worker: int | None = None
) -> str:
    """Returns the line of a step. With a worker's index it begins with `Worker 3: `."""
    prefix = "" if worker is None else f"Worker {worker}: "
    return (
        f"{prefix}{timestamp(now)}: step {progress.step}, "
        f"entropy_loss = {progress.entropy_loss:.2f}, reg_loss = {progress.reg_loss:.2f}, "
        f"total_loss = {progress.total_loss:.2f} {_speed(progress)}"
    )


class Spinner:
    """A spinner with the elapsed time, until `stop`. Without a terminal it shows nothing."""

    def __init__(self) -> None:
        self._spinner = None
        if _is_terminal():
            columns = rich_progress.SpinnerColumn(), rich_progress.TimeElapsedColumn()
            self._spinner = rich_progress.Progress(*columns, transient=True)
            self._spinner.add_task("", total=None)

    def __enter__(self) -> "Spinner":
        if self._spinner:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Removes the spinner; later calls do nothing."""
        if self._spinner:
            self._spinner.stop()
            self._spinner = None


class ProgressBar:
    """A bar below the lines, with figures and the time left. Without a terminal it shows nothing.

        with ProgressBar(first_step, max_steps) as bar:
            bar.update(progress)

    It fits the terminal. If `max_steps` is None, the run has no end and the bar only moves.
    """

    def __init__(self, first_step: int, max_steps: int | None):
        # On a narrow terminal the bar and the figures shrink; a line must not wrap.
        whole = lambda width: Column(no_wrap=True, min_width=width)
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(16),
            rich_progress.MofNCompleteColumn(table_column=whole(2 * len(f"{max_steps}") + 1)),
            rich_progress.TimeRemainingColumn(table_column=whole(len("0:00:00"))),
            rich_progress.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            disable=not _is_terminal(),
            transient=True,
        )
        self._task = self._bar.add_task("", total=max_steps, completed=first_step)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, progress: Progress) -> None:
        """Shows the figures of the latest step."""
        losses = f"{progress.entropy_loss:.2f} + {progress.reg_loss:.2f}"
        text = f"loss = {losses} = {progress.total_loss:.2f} {_speed(progress)}"
        self._bar.start()  # not earlier: a process that ends at once leaves the cursor as it was
        self._bar.update(self._task, completed=progress.step, description=text)


def _speed(progress: Progress) -> str:
    return f"({progress.examples_per_sec:.1f} examples/sec; {progress.sec_per_batch:.3f} sec/batch)"


def _is_terminal() -> bool:
    """Returns whether moving text can be shown.

    Open MPI's mpirun gives each worker a terminal of its own, even where its output goes to a file,
    and mixes what they write: there it cannot.
    """
    return sys.stdout.isatty() and launched.OPEN_MPI not in os.environ
