"""When a ps counts a run as over."""

import pytest

from terngrad.exchange.parameter_server.server.attendance import Attendance

SECS = 10.0
HOSTS = ["a:1", "b:2"]


@pytest.fixture(name="now")
def _now():
    return [0.0]


@pytest.fixture(name="attendance")
def _attendance(now):
    """Of two workers that have come."""
    attendance = Attendance(HOSTS, SECS, lambda: now[0])
    assert attendance.come(0) and attendance.come(1)
    return attendance


def test_a_worker_has_one_stream(attendance):
    assert not attendance.come(1)
    attendance.leave(1, is_done=False, why="died")
    assert attendance.come(1)


def test_a_run_is_over_when_all_have_left_and_one_said_that_it_is_done(attendance, now):
    attendance.leave(0, is_done=True, why="")
    assert attendance.outcome is None
    attendance.leave(1, is_done=False, why="died")
    now[0] = 2.0
    assert attendance.outcome == ""


def test_a_run_that_is_done_does_not_wait_for_one_that_hangs(attendance, now):
    attendance.leave(0, is_done=True, why="")
    now[0] = SECS - 1
    assert attendance.outcome is None
    now[0] = SECS
    assert attendance.outcome == ""


def test_who_fails_to_join_ends_no_run_of_others(attendance, now):
    attendance.leave(1, is_done=True, why="other flags")
    now[0] = 5 * SECS
    assert attendance.outcome is None


def test_a_run_whose_workers_stay_away_ends_with_what_happened_to_the_last(attendance, now):
    for worker in (0, 1):
        attendance.leave(worker, is_done=False, why="died")
    now[0] = SECS - 1
    assert attendance.outcome is None
    now[0] = SECS
    assert attendance.outcome == "worker 1 (b:2) died"
