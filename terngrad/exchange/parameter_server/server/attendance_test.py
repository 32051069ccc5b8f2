"""When a ps considers a run over."""

import pytest

from terngrad.exchange.parameter_server.server.attendance import Attendance

SECS = 10.0
HOSTS = ["a:1", "b:2"]


@pytest.fixture(name="now")
def _now():
    return [0.0]


@pytest.fixture(name="attendance")
def _attendance(now):
    """The attendance of two connected workers."""
    attendance = Attendance(HOSTS, SECS, lambda: now[0])
    assert attendance.come(0) and attendance.come(1)
    return attendance


def test_a_worker_has_one_stream(attendance):
    assert not attendance.come(1)
    attendance.leave(1, is_done=False, why="died")
    assert attendance.come(1)


def test_a_run_is_over_when_all_have_left_and_one_is_done(attendance, now):
    attendance.leave(0, is_done=True, why="")
    assert attendance.outcome is None
    attendance.leave(1, is_done=False, why="died")
    now[0] = 2.0
    assert attendance.outcome == ""


def test_a_finished_run_does_not_wait_for_a_worker_that_hangs(attendance, now):
    attendance.leave(0, is_done=True, why="")
    now[0] = SECS - 1
    assert attendance.outcome is None
    now[0] = SECS
    assert attendance.outcome == ""


def test_a_worker_that_fails_to_join_does_not_end_the_run(attendance, now):
    attendance.leave(1, is_done=True, why="other flags")
    now[0] = 5 * SECS
    assert attendance.outcome is None


def test_a_run_that_lost_all_workers_ends_with_the_reason_of_the_last(attendance, now):
    for worker in (0, 1):
        attendance.leave(worker, is_done=False, why="died")
    now[0] = SECS - 1
    assert attendance.outcome is None
    now[0] = SECS
    assert attendance.outcome == "worker 1 (b:2) died"
