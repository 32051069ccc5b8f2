"""The line of a training step, and the progress bar of a terminal."""

import dataclasses
import datetime
import sys

from rich import progress


@dataclasses.dataclass(frozen=True)
class StepFigures:
    """What a run shows of a step: losses (means over the nodes) and speed since the last one."""

    step: int
    entropy_loss: float
    reg_loss: float
    total_loss: float
    examples_per_sec: float
    sec_per_batch: float

    def __str__(self) -> str:
        return (
            f"step {self.step}, entropy_loss = {self.entropy_loss:.2f}, "
            f"reg_loss = {self.reg_loss:.2f}, total_loss = {self.total_loss:.2f} "
            f"({self.examples_per_sec:.1f} examples/sec; {self.sec_per_batch:.3f} sec/batch)"
        )


def timestamp(now: datetime.datetime | None = None) -> str:
    """Returns the time as 2026-01-31 12:00:00.123456, microseconds included even when 0."""
    return (now or datetime.datetime.now()).isoformat(sep=" ", timespec="microseconds")


def step_line(
    figures: StepFigures, now: datetime.datetime | None = None, worker: int | None = None
) -> str:
    """Returns the line of a step; with `worker` it begins `Worker 3: `."""
    prefix = "" if worker is None else f"Worker {worker}: "
    return f"{prefix}{timestamp(now)}: {figures}"


class ProgressBar:
    """A bar with the figures and the time left, below the lines; nothing without a terminal.

        with ProgressBar(first_step, max_steps) as bar:
            bar.update(figures)

    `max_steps` None (a run without an end) shows a bar that only moves.
    """

    def __init__(self, first_step: int, max_steps: int | None):
        self._bar = progress.Progress(
            progress.BarColumn(16),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.description}"),
            disable=not sys.stdout.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("", total=max_steps, completed=first_step)

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, figures: StepFigures) -> None:
        """Shows the figures of the newest step."""
        losses = f"{figures.entropy_loss:.2f} + {figures.reg_loss:.2f} = {figures.total_loss:.2f}"
        text = (
            f"loss = {losses} "
            f"({figures.examples_per_sec:.1f} examples/sec; {figures.sec_per_batch:.3f} sec/batch)"
        )
        self._bar.update(self._task, completed=figures.step, description=text)
