"""Draws the trials of a sweep: a heat map of two lists of values, else Optuna's own plots."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from inception.sweeping.plan import Plan
from inception.sweeping.space import Choices

_ENOUGH = 3  # finished trials; with fewer there is nothing to compare
_DPI = 120
_BEST = "tab:orange"
_OTHERS = ["#dedede", "#4a90d0"]  # from the worst to the best but one


def draw(study: Study, plan: Plan, folder: Path) -> list[Path]:
    """Draws the pictures for which there are enough trials; returns the files.

    Args:
      study: holds the trials.
      plan: what they tried.
      folder: gets heat_map.png if two names have lists of values, else parallel_coordinates.png;
        importance.png; and, with two objectives, pareto.png.
    """
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = compared(plan)
    if len(finished) < _ENOUGH or not names:
        return []
    with _headless() as plots:
        if len(names) == 2 and all(isinstance(plan.space[name], Choices) for name in names):
            drawn = {"heat_map": lambda: heat_map(finished, plan, names)}
        else:
            drawn = {"parallel_coordinates": lambda: parallel_coordinates(study, plan, plots)}
        if len(names) > 1:
            drawn["importance"] = lambda: _importance(study, plan, plots)
        if len(plan.objectives) > 1:
            drawn["pareto"] = lambda: plots.plot_pareto_front(study, target_names=plan.objectives)
        return [_save(make, folder / f"{name}.png") for name, make in drawn.items()]


def compared(plan: Plan) -> list[str]:
    """Returns the names that have more than one value."""
    has_one = lambda values: isinstance(values, Choices) and len(values.texts) == 1
    return [name for name, values in plan.space.items() if not has_one(values)]


def heat_map(finished: Sequence[FrozenTrial], plan: Plan, names: Sequence[str]) -> Any:
    """Returns the axes of a table of the first objective, one cell for each pair of values.

    A cell shows its best trial. The best cell has a colour that no other one has.
    """
    from matplotlib import pyplot

    down, across = names
    rows, columns = (plan.space[name].texts for name in names)
    sign, cells = _sign(plan), np.full((len(rows), len(columns)), np.nan)
    for trial in finished:
        place = rows.index(trial.params[down]), columns.index(trial.params[across])
        cells[place] = sign * np.fmax(sign * cells[place], sign * _first(trial))
    best = np.unravel_index(np.nanargmax(sign * cells), cells.shape)
    axes = pyplot.figure().subplots()
    axes.grid(visible=False)
    shades = axes.imshow(cells, _colours(plan), aspect="auto")
    axes.add_patch(pyplot.Rectangle((best[1] - 0.5, best[0] - 0.5), 1, 1, color=_BEST))
    for place, value in np.ndenumerate(cells):
        text = "none" if np.isnan(value) else f"{value:.4g}"
        weight = "bold" if place == best else "normal"
        axes.text(*reversed(place), text, ha="center", va="center", weight=weight)
    axes.set(xlabel=across, ylabel=down, title=_title(plan))
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.figure.colorbar(shades, label=plan.objectives[0])
    return axes


def parallel_coordinates(study: Study, plan: Plan, plots: Any) -> Any:
    """Returns the axes of Optuna's plot, with whole names; the best trial's line stands out.

    Args:
      study: holds the trials.
      plan: what they tried.
      plots: Optuna's module.
    """
    names = sorted(compared(plan))  # as Optuna sorts them
    axes = plots.plot_parallel_coordinate(
        study, params=names, target=_first, target_name=plan.objectives[0]
    )
    (lines,) = axes.collections
    lines.set_cmap(_colours(plan))
    best = max(lines.get_segments(), key=lambda line: _sign(plan) * line[0][1])  # it has the target
    axes.plot(*best.T, color=_BEST, linewidth=3, zorder=3)
    for each in axes.figure.axes:
        each.grid(visible=False)
    axes.set_title(_title(plan), y=1.03)
    axes.set_xticklabels([plan.objectives[0], *names])
    return axes


@contextlib.contextmanager
def _headless() -> Iterator[Any]:
    """Loads Optuna's plots for files alone."""
    import matplotlib

    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # of the evaluator: see `_importance`
        from matplotlib import pyplot
        from optuna.visualization import matplotlib as plots

        with pyplot.style.context("default"):  # Optuna's plots change the style
            yield plots


def _sign(plan: Plan) -> int:
    return 1 if plan.directions[0] == "maximize" else -1


def _first(trial: FrozenTrial) -> float:
    return trial.values[0]


def _title(plan: Plan) -> str:
    return f"{plan.objectives[0]} of the trials (orange: the best)"


def _colours(plan: Plan) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("others", _OTHERS[:: _sign(plan)])


def _importance(study: Study, plan: Plan, plots: Any) -> Any:
    # The evaluator asks what makes the target low.
    return plots.plot_param_importances(
        study,
        params=compared(plan),
        evaluator=PedAnovaImportanceEvaluator(),
        target=lambda trial: -_sign(plan) * _first(trial),
        target_name=plan.objectives[0],
    )


def _show_as_they_are(figure: Any) -> None:
    """Lets the values beside the axes be no formulas, which a pair of $ would begin and end."""
    from matplotlib.ticker import FixedLocator

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_locator(), FixedLocator):  # others have numbers: 10^2
            for label in axis.get_ticklabels():
                label.set_parse_math(False)


def _save(make: Callable[[], Any], file: Path) -> Path:
    figure = make().figure
    _show_as_they_are(figure)
    figure.set_size_inches(10, 5)
    figure.savefig(file, dpi=_DPI, bbox_inches="tight")
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)
    return file
