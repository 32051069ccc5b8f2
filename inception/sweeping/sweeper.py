"""Runs the trials of a study at all its places."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from inception.sweeping.messages import End, Order, Outcome
from inception.sweeping.places import Channel, Place
from inception.sweeping.plan import Plan
from inception.sweeping.program import Program
from inception.sweeping.report import Report
from inception.sweeping.study import BEAT_SECS, Study, Task

_LOOK_SECS = 1.0  # between looks for a trial, while others still run
_LOSSES = 2  # a place that lost so many trials in a row is not used any more


@dataclasses.dataclass(frozen=True)
class Commands:
    """What the trials of a sweep run.

    Attributes:
      program: trains and evaluates.
      plan: what all trainings share.
      eval_flags: additional flags of the evaluations.
    """

    program: Program
    plan: Plan
    eval_flags: Sequence[str]

    def order(self, task: Task, folder: Path, place: Place) -> Order:
        """Returns the order for a trial in a folder at a place."""
        launcher, chosen = self.plan.training(task.point)
        follow = bool(self.plan.pruner)
        return Order(
            str(folder),
            [*launcher, *self.program.train(chosen, folder)],
            self.program.evaluate(chosen, folder, self.eval_flags, follow),
            follow,
            place.slot,
            place.slots,
        )


class Sweeper:
    """Gives the trials of a study to places until all have ended."""

    def __init__(
        self, study: Study, commands: Commands, folder: Path, retries: int, report: Report
    ) -> None:
        """Starts nothing yet.

        Args:
          study: says what to run.
          commands: say how.
          folder: holds the trials' folders.
          retries: how often a trial that died is tried again.
          report: is told what happens.
        """
        self._study, self._commands, self._folder = study, commands, folder
        self._retries, self._report = retries, report
        self._stop = threading.Event()
        self._channels: set[Channel] = set()
        self._problems: list[BaseException] = []

    def run(self, places: Sequence[Place]) -> None:
        """Runs trials until none is left.

        What a signal raises ends the trainings, which save, and the block.

        Raises:
          ValueError: no place is left.
        """
        workers = [threading.Thread(target=self._work, args=(place,)) for place in places]
        with self._beating():
            for worker in workers:
                worker.start()
            try:
                for worker in workers:
                    while worker.is_alive():
                        worker.join(_LOOK_SECS)
            finally:
                self._end(workers)
        if self._problems:
            raise self._problems[0]
        if not self._study.is_over():
            raise ValueError("no machine is left to run trials; the same command goes on")

    def _end(self, workers: Sequence[threading.Thread]) -> None:
        self._stop.set()
        for channel in list(self._channels):
            channel.stop()
        for worker in workers:
            worker.join()

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Sends heartbeats within the block."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_SECS):
                self._study.beat()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _work(self, place: Place) -> None:
        """Runs trials at a place until none is left, or the place is lost."""
        losses = 0
        try:
            while not self._stop.is_set() and losses < _LOSSES:
                task = self._study.next()
                if task:
                    losses = losses + 1 if self._run(place, task) is Outcome.LOST else 0
                elif self._study.is_over():
                    return
                else:
                    self._stop.wait(_LOOK_SECS)
        except Exception as error:  # told by the main thread, after the others have saved
            self._problems.append(error)
            self._stop.set()
            for channel in list(self._channels):
                channel.stop()
        if losses == _LOSSES:
            self._report.lost(place.label)

    def _run(self, place: Place, task: Task) -> Outcome:
        end, pruned = End(Outcome.LOST), False
        order = self._commands.order(task, self._folder / task.folder, place)
        with place.start(order) as channel:
            self._channels.add(channel)
            if self._stop.is_set():
                channel.stop()
            for event in channel.events():
                if isinstance(event, End):
                    end = event
                elif not pruned and self._study.report(task, event):
                    pruned = True
                    channel.stop()
            self._channels.discard(channel)
        again = self._study.end(task, end, pruned, self._retries)
        self._report.ended(task, place.label, again)
        return end.outcome
