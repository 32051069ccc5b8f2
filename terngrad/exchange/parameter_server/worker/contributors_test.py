"""What a worker knows about who makes which step."""

import pytest

from terngrad.exchange.parameter_server.worker.contributors import (
    _REMEMBERED_STEPS,
    StepContributors,
)


@pytest.fixture
def ready():
    """Steps that were reported to ps 0."""
    return []


@pytest.fixture
def contributors(ready):
    """Those that worker 1 knows, in a view where a step needs fewer than all workers."""
    found = StepContributors(1, ready.append)
    found.begin(has_backup_workers=True)
    return found


def test_pushes_wait_for_the_decision_and_are_reported_once(contributors, ready):
    assert contributors.contributors(5) is None
    contributors.wait(5, "a")
    contributors.wait(5, "b")
    assert ready == [5]
    assert contributors.decide(5, (0, 1)) == ["a", "b"]
    assert contributors.decide(5, (0, 1)) == []
    assert contributors.contributors(5) == (0, 1)


def test_late_gradients_are_reported_once_and_uncomputed_ones_never(contributors, ready):
    contributors.decide(5, (0, 2))
    contributors.decide(6, (0, 2))
    for _ in range(2):
        contributors.report_late(5)
    assert ready == [5]
    assert contributors.is_excluded(6)
    contributors.report_late(6)
    assert ready == [5]


def test_a_step_that_this_worker_makes_or_that_is_not_decided_is_not_over(contributors, ready):
    contributors.decide(5, (0, 1))
    assert not contributors.is_excluded(5)
    assert not contributors.is_excluded(6)
    contributors.report_late(5)
    assert ready == []


def test_steps_that_were_made_or_decided_long_ago_are_forgotten(contributors):
    for step in range(_REMEMBERED_STEPS + 1):
        contributors.decide(step, (0, 1))
    assert contributors.is_forgotten(0)
    assert not contributors.is_forgotten(1)
    contributors.made(10)
    assert contributors.contributors(10) is None
    assert contributors.contributors(11) == (0, 1)


def test_a_new_view_begins_with_nothing(contributors, ready):
    contributors.wait(5, "a")
    contributors.decide(6, (0, 2))
    contributors.begin(has_backup_workers=False)
    assert contributors.decide(5, (0, 1)) == []
    assert not contributors.is_excluded(6)
    assert not contributors.is_forgotten(0)


def test_nothing_waits_in_an_abandoned_step(contributors):
    contributors.wait(5, "a")
    contributors.give_up()
    assert contributors.decide(5, (0, 1)) == []
