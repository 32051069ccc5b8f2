"""The simulation finds broken laws."""

import numpy as np
import pytest

from terngrad.coordination import groups
from terngrad.service.messages import View
from terngrad.testing.simulation.laws import (
    BrokenLawError,
    Ledger,
    State,
    contributors_of,
    gradient,
)

WORKERS = 3
VIEW = View(number=1, members=groups.pack((0, 1, 2)), needed=2)


def result(*makers, operation=0, state=None):
    """Returns the sum of some workers' gradients, as if two workers had contributed."""
    parts = [gradient(worker, state or State(), operation, WORKERS) for worker in makers]
    return sum(parts, np.zeros(WORKERS, np.int32)), 2


def later():
    state = State()
    state.apply((0, 1))
    return state


def test_the_workers_that_made_a_step_are_found_in_its_results():
    results = [result(0, 2), result(0, 2, operation=1)]
    assert contributors_of(results, State(), VIEW) == (0, 2)


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([result(0, 2, 2)], "worker 2 counts"),
        ([result(0, 2, state=later())], "worker 0 counts"),
        ([result(0, 1), result(0, 2, operation=1)], "operations have different workers"),
        ([result(0)], "1 workers made it, not 2"),
    ],
    ids=["doubled", "of another state", "mixed", "incomplete"],
)
def test_an_invalid_step_is_found(results, text):
    with pytest.raises(BrokenLawError, match=text):
        contributors_of(results, State(), VIEW)


def test_a_step_by_workers_outside_the_view_or_by_too_few_is_found():
    for view in (View(members=groups.pack((0, 1)), needed=2), View(members=b"\7", needed=3)):
        with pytest.raises(BrokenLawError, match="made by"):
            contributors_of([result(0, 2)], State(), view)


def test_different_states_in_a_view_and_different_views_with_a_number_are_found():
    ledger = Ledger()
    ledger.note_state(0, VIEW, later())
    ledger.note_state(1, VIEW, later())
    ledger.note_state(1, VIEW, State())
    other = State()
    other.apply((0, 2))
    with pytest.raises(BrokenLawError, match="worker 2, view 1, step 1: the state differs"):
        ledger.note_state(2, VIEW, other)
    ledger.note_view(VIEW)
    with pytest.raises(BrokenLawError, match="view 1 differs"):
        ledger.note_view(View(number=1))


def test_an_end_before_the_last_state_is_saved_is_found():
    ledger = Ledger()
    ledger.note_saved(State())
    ledger.check_saved(State())
    with pytest.raises(BrokenLawError, match="nobody saved step 1, the last one"):
        ledger.check_saved(later())
