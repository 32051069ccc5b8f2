"""What a sweep reports: a line a trial, then a table, a CSV file, pictures and the best command."""

from __future__ import annotations

import csv
import shlex
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from rich import console, table

from inception.results.logs import timestamp
from inception.sweeping import pictures
from inception.sweeping.plan import Plan, point_of
from inception.sweeping.study import RunningTrial, Study

FILE = "trials.csv"
_ROWS = 20  # of the printed table
_STATES = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


class Report:
    """Reports the outcomes of a study's trials; from any thread."""

    def __init__(self, study: Study, plan: Plan, folder: Path) -> None:
        """Takes the folder for files, and for a repeated best trial."""
        self._study, self._plan, self._folder = study, plan, folder
        self._lock = threading.Lock()

    def begin(self, places: Sequence[str]) -> None:
        """Prints what will be done."""
        open_trials = self._plan.total - sum(t.state.is_finished() for t in self._study.results())
        plan, where = self._plan, ", ".join(dict.fromkeys(places))
        print(
            f"{plan.program}: {open_trials} of {plan.total} trials to run, {plan.method} over "
            f"{', '.join(plan.space)}; {len(places)} at once ({where}).",
            flush=True,
        )

    def ended(self, running: RunningTrial, place: str, again: bool | None) -> None:
        """Prints how a trial ended, and the best one so far; see `Study.end` for `again`."""
        if again is None:
            why = "another sweep has taken it over, because this one was silent"
            with self._lock:
                print(f"{timestamp()}: {running.folder} at {place}: {why}", flush=True)
            return
        results = self._study.results()
        trial = self._study.trial(running.trial.number)
        done = sum(t.state.is_finished() for t in results)
        point = " ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
        how = "it will go on from its checkpoint" if again else f"{done} of {self._plan.total} done"
        parts = [f"{timestamp()}: {running.folder} at {place}: {point}: {_outcome(trial)}", how]
        if best := self._best():
            parts.append(f"best so far {best[0].user_attrs['folder']}: {_outcome(best[0])}")
        with self._lock:
            print("; ".join(parts), flush=True)

    def lost(self, place: str) -> None:
        """Prints that a place is not used any more."""
        with self._lock:
            print(f"{place} lost several trials in a row and gets no more.", flush=True)

    def finish(self) -> None:
        """Prints the table and the best command; writes trials.csv and the pictures."""
        results = sorted(self._study.results(), key=self._rank)
        rows = [self._row(trial) for trial in results]
        file = self._folder / FILE
        with file.open("w", newline="") as output:
            writer = csv.DictWriter(output, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        _print_table(rows[:_ROWS])
        if len(rows) > _ROWS:
            print(f"{len(rows) - _ROWS} more trials are in the file.")
        print(f"All trials: {file}")
        for picture in pictures.draw(self._study.optuna, self._plan, self._folder):
            print(f"Picture: {picture}")
        best = self._best()
        if len(self._plan.objectives) > 1:
            names = ", ".join(trial.user_attrs["folder"] for trial in best)
            print(f"Pareto front, best {self._plan.objectives[0]} first: {names or 'no trial'}")
        for trial in best[:1]:
            print(f"Repeat the best trial: {self._command(trial)}", flush=True)

    def _best(self) -> list[FrozenTrial]:
        """Returns the best trial, or the Pareto front in the order of the first objective."""
        if not any(trial.state is TrialState.COMPLETE for trial in self._study.results()):
            return []
        return sorted(self._study.optuna.best_trials, key=self._rank)

    def _rank(self, trial: FrozenTrial) -> tuple[Any, ...]:
        """Orders trials: finished ones by the first objective, then the others."""
        if trial.state is not TrialState.COMPLETE:
            return (1, trial.number)
        sign = -1 if self._plan.directions[0] == "maximize" else 1
        return (0, sign * trial.values[0], trial.number)

    def _row(self, trial: FrozenTrial) -> dict[str, Any]:
        evaluation = trial.user_attrs.get("evaluation") or {}
        others = ("bytes_sent", "seconds", "reason")
        return {
            "trial": trial.user_attrs.get("folder", trial.number),
            "state": _STATES[trial.state],
            **trial.params,
            **{name: evaluation.get(name, "") for name in ("precision", "recall", "step")},
            **{name: _blank(trial.user_attrs.get(name)) for name in others},
        }

    def _command(self, trial: FrozenTrial) -> str:
        launcher, chosen = self._plan.training(point_of(trial.params))
        command = [sys.executable, "-m", *launcher, self._plan.program, *chosen]
        return shlex.join([*command, f"--train_dir={self._folder / 'best'}"])


def _outcome(trial: FrozenTrial) -> str:
    """Returns the outcome of a trial in words."""
    attributes = trial.user_attrs
    outcome, evaluation = attributes.get("outcome", "failed"), attributes.get("evaluation")
    if outcome not in ("done", "pruned"):
        return f"{outcome} ({attributes['reason']})" if attributes.get("reason") else outcome
    text = f"{attributes['seconds']:.0f} s"
    if evaluation:
        text = f"precision {evaluation['precision']:.4f} at step {evaluation['step']}, {text}"
    return text if outcome == "done" else f"pruned, {text}"


def _blank(value: Any) -> Any:
    return "" if value is None else value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    shown = table.Table()
    for name in rows[0]:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*map(_short, row.values()))
    width = None if sys.stdout.isatty() else 160
    # A value may look like markup: /data/x[/y] or a:b:c.
    console.Console(soft_wrap=True, width=width, markup=False, emoji=False).print(shown)
