"""The bound on how far a worker runs ahead."""

import threading
from unittest import mock

from terngrad.asynchronous.staleness import StalenessBound
from terngrad.asynchronous.store import PushOutcome
from terngrad.asynchronous.workers import Workers, WorkerStream
from terngrad.testing.limits import HANG_SECS

SECS = 30.0


def blocked(bound, worker, steps):
    """A thread that waits like a worker."""
    thread = threading.Thread(target=bound.wait, args=(worker, steps, lambda: True), daemon=True)
    thread.start()
    return thread


def assert_is_blocked(thread):
    thread.join(0.3)
    assert thread.is_alive()


def assert_continues(thread):
    thread.join(HANG_SECS)
    assert not thread.is_alive()


def test_a_worker_waits_for_the_slowest_when_it_is_more_than_the_bound_ahead():
    bound = StalenessBound(SECS)
    for worker in (0, 1):
        bound.step(worker)
    for _ in range(2):
        bound.step(0)
    assert_continues(blocked(bound, 0, 2))
    bound.step(0)
    thread = blocked(bound, 0, 2)
    assert_is_blocked(thread)
    bound.step(1)
    assert_continues(thread)


def test_without_a_bound_nobody_waits():
    bound = StalenessBound(SECS)
    bound.step(1)
    for _ in range(100):
        bound.step(0)
    assert_continues(blocked(bound, 0, -1))


def test_nobody_waits_for_a_worker_that_has_gone():
    bound = StalenessBound(SECS)
    bound.step(1)
    for _ in range(5):
        bound.step(0)
    thread = blocked(bound, 0, 0)
    assert_is_blocked(thread)
    bound.leave(1)
    assert_continues(thread)


def test_the_staleness_bound_ignores_a_worker_that_makes_no_step_for_too_long():
    now = [0.0]
    bound = StalenessBound(SECS, lambda: now[0])
    bound.step(1)
    for _ in range(5):
        bound.step(0)
    assert_is_blocked(blocked(bound, 0, 0))
    now[0] = SECS + 1
    bound.step(0)
    assert_continues(blocked(bound, 0, 0))
    bound.step(1)  # it joins again, at the step of the others
    assert_continues(blocked(bound, 0, 0))


def test_a_worker_that_joins_later_begins_with_the_slowest():
    bound = StalenessBound(SECS)
    for _ in range(9):
        bound.step(0)
    bound.step(1)
    assert_continues(blocked(bound, 1, 0))
    assert_continues(blocked(bound, 0, 0))


def test_the_seconds_that_a_worker_is_held_are_returned():
    now = [0.0]
    bound = StalenessBound(SECS, lambda: now[0])
    for worker in (0, 1, 0):
        bound.step(worker)

    def continues():
        now[0] += 2.0
        return now[0] < 5.0

    assert bound.wait(0, 0, continues) == 6.0
    assert bound.wait(1, 0, continues) == 0.0


def test_nobody_waits_for_a_worker_that_left_while_its_push_was_applied():
    workers = Workers(mock.Mock(max_staleness=0, is_finished=False), 2, SECS, holds_back=True)
    streams = [WorkerStream(worker, mock.Mock(is_open=True), 7) for worker in range(2)]
    for stream in streams:
        workers.enter(stream)
        workers.count_push(stream, PushOutcome.APPLIED)
    stays, leaves = streams
    workers.leave(leaves)
    workers.count_push(leaves, PushOutcome.APPLIED)
    for _ in range(3):
        workers.count_push(stays, PushOutcome.APPLIED)
    workers.await_turn(stays)
    assert workers._bound._steps == {0: 4}


def test_a_push_counts_that_is_applied_after_its_worker_has_another_stream():
    workers = Workers(mock.Mock(max_staleness=0, is_finished=False), 2, SECS, holds_back=True)
    first, second = (WorkerStream(0, mock.Mock(is_open=True), 7) for _ in range(2))
    workers.enter(first)
    workers.enter(second)
    workers.count_push(first, PushOutcome.APPLIED)
    assert workers._bound._steps == {0: 1}
