"""Which worker gives its state to which."""

import pytest

from terngrad.coordination import groups
from terngrad.coordination.decisions import in_words, next_view
from terngrad.coordination.states import CoordinatorState, Rules
from terngrad.service.messages import StateReport


def report(steps, view=0, *, is_live=True):
    return StateReport(steps=steps, view=view, is_live=is_live)


def view_of(reports, needed=2, number=1):
    """The view after view `number`, of workers that have reported so."""
    state = CoordinatorState([""] * 3, Rules(needed, False, 1.0), lambda: 0.0, number)
    for worker, each in reports.items():
        state.records[worker].report = each
    return next_view(state)


@pytest.mark.parametrize(
    ("reports", "steps", "donor", "receivers"),
    [
        pytest.param(
            {0: report(7, is_live=False), 1: report(9, is_live=False)}, 7, 0, (1,), id="first"
        ),
        pytest.param({0: report(0, is_live=False), 1: report(9, 5)}, 9, 1, (0,), id="live"),
        pytest.param({0: report(8, 5), 1: report(9, 5)}, 9, 1, (0,), id="furthest"),
        pytest.param({0: report(9, 4), 1: report(8, 5)}, 8, 1, (0,), id="newest view"),
        pytest.param(
            {0: report(9, 5), 1: report(9, 5), 2: report(9, 5, is_live=False)},
            9,
            0,
            (2,),
            id="interrupted before it got a state",
        ),
    ],
)
def test_the_donor_is_the_worker_with_most_steps_in_the_newest_view(
    reports, steps, donor, receivers
):
    view = view_of(reports, needed=9, number=3)
    assert (view.steps, view.donor, groups.unpack(view.receivers)) == (steps, donor, receivers)
    assert view.number > max(3, *(each.view for each in reports.values()))
    assert groups.unpack(view.members) == tuple(reports)
    assert view.needed == len(reports)


def test_the_log_says_which_worker_gives_its_state_to_which():
    view = view_of({0: report(3), 1: report(3), 2: report(0, is_live=False)})
    assert in_words(view) == (
        "Workers 0, 1 and 2 train from step 3 on, 2 of them at each step; worker 0 gives its "
        "state to worker 2."
    )
    assert in_words(view_of({1: report(3)})) == "Worker 1 trains from step 3 on."
