"""Which worker gives its state to which."""

import pytest

from terngrad.coordination import decisions, groups
from terngrad.coordination.decisions import in_words, next_view
from terngrad.coordination.states import CoordinatorState, Phase, Rules, WorkerEvent
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


VIEW = {"view": 7, "members": groups.pack(range(4)), "coordinator": 0}


def moving(reporters, ended=(), restarted=(), ps=1, workers=4, later=(), **rules):
    """A coordinator to which these members of a view of four have come; `later` ended unheard."""
    rules = Rules(workers, True, 10.0, 0.5, coordinator_moves=True, **rules)
    state = CoordinatorState([f"host{i}:1" for i in range(workers)], rules, lambda: 0.0, 1, ps)
    for worker in (*reporters, *restarted):
        state.connect(worker)
        is_live = worker in reporters
        given = StateReport(steps=9, is_live=is_live, **(VIEW if is_live else {}))
        state.records[worker].change(WorkerEvent.REPORT, given)
        session = state.records[worker].session
        session.ended_in_view = frozenset(ended)
        session.ended_ps = session.ended_in_view.union(later)
    return state


@pytest.mark.parametrize(
    ("state", "goes_on"),
    [
        (moving({1, 2, 3}), True),
        (moving({2, 3}), False),  # of the other half one may have stayed with worker 0
        (moving({0, 1}, ps=0), True),
        (moving({1, 2}, ended={0}), True),
        (moving({2}, ended={0, 1, 3}, ps=2), True),
        (moving({2}, ended={0, 1}, ps=2), True),  # not worker 3, which is the other half
        (moving({1, 2}, restarted={0}), False),
        (moving({1, 2}, ended={0}, restarted={0}), True),
        (moving({2, 3}, ended={0}), True),
        (moving({3}, ended={0, 1}), False),
        (moving((), restarted={0, 1}), True),  # a new training
        (moving((), restarted={1, 2}), False),  # the others may train already
        (moving((), restarted={0}, later={1, 2, 3}), True),
        (moving((), restarted={0}, later={1, 2}), False),
        (moving({0}, restarted={1}, ps=0, workers=4), False),
        (moving({2, 3}, later={0, 1}), True),  # nobody is left that could go on
        (moving({3}, later={0, 1, 2}, ps=3), True),
        (moving({2, 3}, later={0}), False),  # worker 0 may have gone on with worker 1 before
    ],
)
def test_at_most_one_side_of_a_network_partition_goes_on(state, goes_on):
    assert (decisions.too_few_to_go_on(state) == "") == goes_on


def test_of_two_halves_without_a_coordinator_that_of_the_lowest_worker_goes_on():
    members = groups.pack(range(5))
    halves = [moving(half, ended={0}, workers=5) for half in ({1, 4}, {2, 3})]
    for state in halves:
        for record in state.records:
            if record.report:
                record.report.members = members
    assert [decisions.too_few_to_go_on(state) == "" for state in halves] == [True, False]


def test_a_training_waits_below_its_least_size_and_ends_after_a_time():
    state = moving({1, 2}, ended={0, 3}, min_size=3, wait_secs=60.0)
    state.phase = Phase.FORMING
    assert decisions.form(state) is None
    state.clock = lambda: 59.0
    assert decisions.act_on_timeouts(state) is None
    state.clock = lambda: 60.0
    assert decisions.act_on_timeouts(state).why == "after 60 s 2 of at least 3 workers have joined"


def test_a_coordinator_goes_on_from_the_state_of_its_own_members():
    state = moving({1, 2, 3})
    state.phase = Phase.FORMING
    state.install(next_view(state))
    for worker, view, steps in ((1, state.number, 9), (2, state.number, 9)):
        state.records[worker].change(
            WorkerEvent.REPORT, StateReport(steps=steps, is_live=True, view=view)
        )
    other = StateReport(steps=5, is_live=True, view=state.number + 5)  # of another coordinator
    state.records[0].change(WorkerEvent.CONNECT)
    state.records[0].change(WorkerEvent.REPORT, other)
    view = next_view(state)
    assert (view.steps, groups.unpack(view.receivers)) == (9, (0,))
    assert view.number > other.view
