"""What a worker knows about who makes which step."""

import pytest

from terngrad.exchange.parameter_server.worker.decisions import _REMEMBERED_STEPS, Decisions


@pytest.fixture
def ready():
    """Steps that were reported to ps 0."""
    return []


@pytest.fixture
def decisions(ready):
    """Decisions of worker 1, in a view where a step needs fewer than all workers."""
    found = Decisions(1, ready.append)
    found.begin(spares=True)
    return found


def test_pushes_wait_for_the_decision_and_are_reported_once(decisions, ready):
    assert decisions.contributors(5) is None
    decisions.hold(5, "a")
    decisions.hold(5, "b")
    assert ready == [5]
    assert decisions.decide(5, (0, 1)) == ["a", "b"]
    assert decisions.decide(5, (0, 1)) == []
    assert decisions.contributors(5) == (0, 1)


def test_late_gradients_are_reported_once_and_uncomputed_ones_never(decisions, ready):
    decisions.decide(5, (0, 2))
    decisions.decide(6, (0, 2))
    for _ in range(2):
        decisions.tell_late(5)
    assert ready == [5]
    assert decisions.follows(6)
    decisions.tell_late(6)
    assert ready == [5]


def test_a_step_that_this_worker_makes_or_that_is_not_decided_is_not_over(decisions, ready):
    decisions.decide(5, (0, 1))
    assert not decisions.follows(5)
    assert not decisions.follows(6)
    decisions.tell_late(5)
    assert ready == []


def test_steps_that_were_made_or_decided_long_ago_are_forgotten(decisions):
    for step in range(_REMEMBERED_STEPS + 1):
        decisions.decide(step, (0, 1))
    assert decisions.is_forgotten(0)
    assert not decisions.is_forgotten(1)
    decisions.made(10)
    assert decisions.contributors(10) is None
    assert decisions.contributors(11) == (0, 1)


def test_a_new_view_begins_with_nothing(decisions, ready):
    decisions.hold(5, "a")
    decisions.decide(6, (0, 2))
    decisions.begin(spares=False)
    assert decisions.decide(5, (0, 1)) == []
    assert not decisions.follows(6)
    assert not decisions.is_forgotten(0)


def test_nothing_waits_in_an_abandoned_step(decisions):
    decisions.hold(5, "a")
    decisions.give_up()
    assert decisions.decide(5, (0, 1)) == []
