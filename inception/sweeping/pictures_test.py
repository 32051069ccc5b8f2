"""Which pictures a sweep draws, and what stands out in them."""

import warnings

import matplotlib.colors
import numpy as np
import optuna
import pytest

from inception.sweeping import pictures
from inception.sweeping.plan import Plan
from inception.sweeping.space import Choices, Range

ORANGE = matplotlib.colors.to_rgba("tab:orange")
RATES = Choices(("0.1", "0.01", "0.001"))
DECAYS = Choices(("exponential", "polynomial"))
ONE = Choices(("gd",))
LONG = "learning_rate_decay_type"


def plan(space, *objectives):
    return Plan("p", (), (), space, "grid", 4, 1, objectives or ("precision",), "")


def study(of, results):
    """A study with one finished trial for each (parameters, first objective)."""
    made = optuna.create_study(directions=of.directions)
    for params, value in results:
        values = [value] * len(of.objectives)
        made.add_trial(
            optuna.create_trial(params=params, distributions=of.distributions, values=values)
        )
    return made


def lists(of):
    """A trial of each pair of values; the third one is the best."""
    values = (0.3, 0.2, 0.9, 0.4, 0.5, 0.1)
    pairs = [{"rate": r, LONG: d, "optimizer": "gd"} for r in RATES.texts for d in DECAYS.texts]
    return study(of, zip(pairs, values, strict=True))


@pytest.mark.parametrize(
    ("space", "params", "names"),
    [
        (
            {"rate": RATES, LONG: DECAYS, "optimizer": ONE},
            [{"rate": r, LONG: "polynomial", "optimizer": "gd"} for r in RATES.texts],
            {"heat_map", "importance"},
        ),
        (
            {"rate": Range(0.1, 1.0, log=False), LONG: DECAYS},
            [{"rate": r, LONG: "polynomial"} for r in (0.1, 0.2, 0.3)],
            {"parallel_coordinates", "importance"},
        ),
        ({"rate": RATES}, [{"rate": r} for r in RATES.texts], {"parallel_coordinates"}),
        ({"rate": RATES}, [{"rate": r} for r in RATES.texts[:2]], set()),
        ({"optimizer": ONE}, [{"optimizer": "gd"}] * 3, set()),
    ],
)
def test_two_lists_of_values_give_a_heat_map_and_others_parallel_lines(
    space, params, names, tmp_path
):
    of = plan(space)
    made = study(of, [(each, i / 10) for i, each in enumerate(params)])
    drawn = pictures.draw(made, of, tmp_path)
    assert {file.stem for file in drawn} == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawn)


@pytest.mark.parametrize("other", [DECAYS, Range(0.1, 1.0, log=True)])
def test_values_with_dollars_are_no_formulas(other, tmp_path):
    texts = Choices(("$x$^_", "$y_{$"))
    of = plan({"text": texts, "other": other})
    seconds = DECAYS.texts if other is DECAYS else (0.2, 0.3)
    pairs = [{"text": text, "other": value} for text in texts.texts for value in seconds]
    drawn = pictures.draw(study(of, [(each, 0.5) for each in pairs]), of, tmp_path)
    assert len(drawn) == 2


def test_two_objectives_also_give_the_pareto_front(tmp_path):
    of = plan({"rate": RATES, LONG: DECAYS, "optimizer": ONE}, "precision", "bytes")
    names = [file.stem for file in pictures.draw(lists(of), of, tmp_path)]
    assert names == ["heat_map", "importance", "pareto"]


@pytest.mark.parametrize(("objective", "best"), [("precision", (1, 0)), ("seconds", (2, 1))])
def test_a_heat_map_shows_each_pair_and_the_best_one_in_orange(objective, best):
    of = plan({"rate": RATES, LONG: DECAYS, "optimizer": ONE}, objective)
    axes = pictures.heat_map(lists(of).trials, of, ["rate", LONG])
    cells = [["0.3", "0.2"], ["0.9", "0.4"], ["0.5", "0.1"]]
    shown = {tuple(text.get_position())[::-1]: text.get_text() for text in axes.texts}
    assert shown == {place: cells[place[0]][place[1]] for place in np.ndindex(3, 2)}
    (cell,) = axes.patches
    assert (cell.get_y() + 0.5, cell.get_x() + 0.5) == best and cell.get_facecolor() == ORANGE
    assert [label.get_text() for label in axes.get_yticklabels()] == list(RATES.texts)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(DECAYS.texts)
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("rate", LONG)


@pytest.mark.parametrize(("objective", "best"), [("precision", 0.9), ("seconds", 0.1)])
def test_parallel_lines_have_whole_names_and_the_best_one_in_orange(objective, best):
    of = plan({"rate": Range(0.0, 1.0, log=False), LONG: DECAYS, "optimizer": ONE}, objective)
    values = ((0.3, 0.2), (0.8, 0.9), (0.5, 0.1))
    each = ({"rate": rate, LONG: "polynomial", "optimizer": "gd"} for rate, _ in values)
    made = study(of, zip(each, (value for _, value in values), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Optuna: it may change
        axes = pictures.parallel_coordinates(made, of, optuna.visualization.matplotlib)
    assert [label.get_text() for label in axes.get_xticklabels()] == [objective, LONG, "rate"]
    (line,) = [line for line in axes.lines if matplotlib.colors.to_rgba(line.get_color()) == ORANGE]
    assert line.get_ydata()[0] == best
