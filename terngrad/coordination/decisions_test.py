"""Which worker gives its state to which."""

import pytest

from terngrad.coordination import groups
from terngrad.coordination.decisions import in_words, next_view
from terngrad.service.messages import Standing


def standing(steps, view=0, *, is_live=True):
    return Standing(steps=steps, view=view, is_live=is_live)


@pytest.mark.parametrize(
    ("standings", "steps", "donor", "receivers"),
    [
        pytest.param(
            {0: standing(7, is_live=False), 1: standing(9, is_live=False)}, 7, 0, (1,), id="first"
        ),
        pytest.param({0: standing(0, is_live=False), 1: standing(9, 5)}, 9, 1, (0,), id="live"),
        pytest.param({0: standing(8, 5), 1: standing(9, 5)}, 9, 1, (0,), id="furthest"),
        pytest.param({0: standing(9, 4), 1: standing(8, 5)}, 8, 1, (0,), id="newest view"),
        pytest.param(
            {0: standing(9, 5), 1: standing(9, 5), 2: standing(9, 5, is_live=False)},
            9,
            0,
            (2,),
            id="interrupted before it got a state",
        ),
    ],
)
def test_the_donor_is_the_worker_with_most_steps_in_the_newest_view(
    standings, steps, donor, receivers
):
    view = next_view(standings, 9, 3)
    assert (view.steps, view.donor, groups.unpack(view.receivers)) == (steps, donor, receivers)
    assert view.number > max(3, *(each.view for each in standings.values()))
    assert groups.unpack(view.members) == tuple(standings)
    assert view.needed == len(standings)


def test_the_log_says_which_worker_gives_its_state_to_which():
    view = next_view({0: standing(3), 1: standing(3), 2: standing(0, is_live=False)}, 2, 1)
    assert in_words(view) == (
        "Workers 0, 1 and 2 train from step 3 on, 2 of them at each step; worker 0 gives its "
        "state to worker 2."
    )
    assert in_words(next_view({1: standing(3)}, 2, 1)) == "Worker 1 trains from step 3 on."
