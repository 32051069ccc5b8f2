"""When a ps considers a run over."""

import pytest

from terngrad.exchange.parameter_server.server.worker_registry import WorkerRegistry

SECS = 10.0
HOSTS = ["a:1", "b:2"]


@pytest.fixture(name="now")
def _now():
    return [0.0]


@pytest.fixture(name="registry")
def _registry(now):
    """The registry of two connected workers."""
    registry = WorkerRegistry(HOSTS, SECS, lambda: now[0])
    assert registry.connect(0) and registry.connect(1)
    return registry


def test_a_worker_has_one_stream(registry):
    assert not registry.connect(1)
    registry.disconnect(1, is_done=False, why="died")
    assert registry.connect(1)


def test_a_run_is_over_when_all_have_left_and_one_is_done(registry, now):
    registry.disconnect(0, is_done=True, why="")
    assert registry.outcome is None
    registry.disconnect(1, is_done=False, why="died")
    now[0] = 2.0
    assert registry.outcome == ""


def test_a_finished_run_does_not_wait_for_a_worker_that_hangs(registry, now):
    registry.disconnect(0, is_done=True, why="")
    now[0] = SECS - 1
    assert registry.outcome is None
    now[0] = SECS
    assert registry.outcome == ""


def test_a_worker_that_fails_to_join_does_not_end_the_run(registry, now):
    registry.disconnect(1, is_done=True, why="other flags")
    now[0] = 5 * SECS
    assert registry.outcome is None


def test_a_run_that_lost_all_workers_ends_with_the_reason_of_the_last(registry, now):
    for worker in (0, 1):
        registry.disconnect(worker, is_done=False, why="died")
    now[0] = SECS - 1
    assert registry.outcome is None
    now[0] = SECS
    assert registry.outcome == "worker 1 (b:2) died"
