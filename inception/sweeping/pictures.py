"""Draws the trials of a sweep, with Optuna's own plots."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import TrialState

from inception.sweeping.plan import Plan

_ENOUGH = 3  # finished trials; with fewer there is nothing to compare
_DPI = 120


def draw(study: Study, plan: Plan, folder: Path) -> list[Path]:
    """Draws what the trials allow to draw; returns the files.

    Args:
      study: holds the trials.
      plan: what they tried.
      folder: gets parallel_coordinates.png, importance.png and, with two objectives, pareto.png.
    """
    with _headless() as plots:
        drawn = {"parallel_coordinates": lambda: _parallel(study, plan, plots)}
        if len(plan.space) > 1:
            drawn["importance"] = lambda: _importance(study, plan, plots)
        if len(plan.objectives) > 1:
            drawn["pareto"] = lambda: plots.plot_pareto_front(study, target_names=plan.objectives)
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) < _ENOUGH:
            return []
        return [_save(make, folder / f"{name}.png") for name, make in drawn.items()]


@contextlib.contextmanager
def _headless() -> Iterator[object]:
    """Loads Optuna's plots for files alone."""
    import matplotlib

    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # of the evaluator: see `_importance`
        from optuna.visualization import matplotlib as plots

        yield plots


def _first(trial: optuna.trial.FrozenTrial) -> float:
    return trial.values[0]


def _parallel(study: Study, plan: Plan, plots: object) -> object:
    axes = plots.plot_parallel_coordinate(study, target=_first, target_name=plan.objectives[0])
    best_is_dark = "viridis_r" if plan.directions[0] == "maximize" else "viridis"
    for lines in axes.collections:
        lines.set_cmap(best_is_dark)
    return axes


def _importance(study: Study, plan: Plan, plots: object) -> object:
    # The evaluator asks what makes the target low.
    sign = -1 if plan.directions[0] == "maximize" else 1
    return plots.plot_param_importances(
        study,
        evaluator=PedAnovaImportanceEvaluator(),
        target=lambda trial: sign * trial.values[0],
        target_name=plan.objectives[0],
    )


def _save(make: Callable[[], object], file: Path) -> Path:
    figure = make().figure
    figure.set_size_inches(10, 5)
    figure.savefig(file, dpi=_DPI, bbox_inches="tight")
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)
    return file
