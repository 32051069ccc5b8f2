"""The part of a run on one ps: each gradient is applied once, and to its run."""

import dataclasses
import threading
from concurrent import futures

import pytest

from terngrad.asynchronous import snapshots
from terngrad.asynchronous.messages import CallError
from terngrad.asynchronous.store import OtherRunError, PushOutcome
from terngrad.asynchronous.updates import Updates
from terngrad.testing.asynchronous import (
    CONFIGURATION,
    PLAN,
    SECS,
    gradient,
    push,
    store_in,
    with_run,
)


def test_a_gradient_of_another_run_is_not_applied(tmp_path):
    store = with_run(store_in(tmp_path))
    with_run(store, dataclasses.replace(PLAN, run="another run"))
    with pytest.raises(OtherRunError):
        push(store, 1)
    with pytest.raises(OtherRunError):
        store.pushed_bytes(PLAN.run)
    assert store.status == ("another run", 0, False, False)


def test_a_gradient_that_comes_while_a_run_begins_is_not_applied_to_it(tmp_path, monkeypatch):
    store = with_run(store_in(tmp_path))
    checking, saving = threading.Event(), threading.Event()
    save, check = snapshots.SnapshotWriter.save, Updates.check

    def save_slowly(*args):
        saving.set()
        assert checking.wait(SECS)
        return save(*args)

    def check_slowly(updates, content):
        checking.set()
        assert saving.wait(SECS)
        return check(updates, content)

    monkeypatch.setattr(snapshots.SnapshotWriter, "save", save_slowly)
    monkeypatch.setattr(Updates, "check", check_slowly)
    with futures.ThreadPoolExecutor(2) as threads:
        pushed = threads.submit(push, store, 1)
        assert checking.wait(SECS)
        began = threads.submit(with_run, store, dataclasses.replace(PLAN, run="another run"))
        assert isinstance(pushed.exception(SECS), OtherRunError)
        began.result(SECS)
    assert store.status == ("another run", 0, False, False)


def test_a_run_that_begins_replaces_another_or_goes_on_is_logged(tmp_path):
    lines = []
    store = with_run(store_in(tmp_path, log=lines.append))
    push(store, 4)
    with_run(store, dataclasses.replace(PLAN, run="another run"), version=2)
    again = store_in(tmp_path, log=lines.append)
    again.enter(0, "another run", CONFIGURATION)
    again.enter(1, "another run", CONFIGURATION)
    assert lines == [
        "Run a run begins at step 0.",
        "Run another run begins at step 2, in the place of run a run at step 4.",
        f"Loaded {tmp_path}/snapshot-2; waits for the workers of its run.",
        "Run another run continues at step 2.",
    ]


@pytest.mark.parametrize("begins", [True, False])
def test_a_worker_is_compared_with_a_run_once_it_begins_or_continues(tmp_path, begins):
    with_run(store_in(tmp_path))
    store = store_in(tmp_path)
    others = CONFIGURATION | {"batch_size": "9"}
    assert store.enter(1, "", others).waits  # worker 0 may still begin a run with 9
    if begins:
        with_run(store, dataclasses.replace(PLAN, run="another run"))
    else:
        store.enter(0, PLAN.run, CONFIGURATION)
    with pytest.raises(CallError, match=r"batch_size is 9 on .* and 8 on"):
        store.enter(1, "", others)
    assert not store.enter(1, "", CONFIGURATION).waits


def test_pushes_wait_for_the_end_of_a_run_or_for_its_going_on(tmp_path):
    store = with_run(store_in(tmp_path))
    for then, outcome in [
        (store.resume_pushes, PushOutcome.APPLIED),
        (store.end, PushOutcome.DROPPED),
    ]:
        store.pause_pushes()
        with futures.ThreadPoolExecutor(1) as threads:
            sequence = store.version + 1
            pushed = threads.submit(store.push, PLAN.run, 0, 7, sequence, 0, gradient())
            with pytest.raises(futures.TimeoutError):
                pushed.result(0.2)
            then()
            assert pushed.result(SECS) == outcome
    assert store.version == 1


def test_staleness_is_the_updates_between_pull_and_push(tmp_path):
    store = with_run(store_in(tmp_path))
    for worker, version in [(0, 0), (1, 0), (0, 1), (1, 0)]:
        store.push(PLAN.run, worker, 7, store.version + 1, version, gradient())
    assert store.unreported_staleness() == [0, 1, 1, 3]
    assert store.unreported_staleness() == []
    found = store.take_staleness()
    assert (found.count, found.mean, found.largest) == (4, 1.25, 3)


def test_no_update_comes_after_the_last(tmp_path):
    store = with_run(store_in(tmp_path), version=PLAN.max_steps - 2)
    push(store, 5)
    assert store.version == PLAN.max_steps and store.is_finished
    assert store.push(PLAN.run, 0, 7, 2, 99, gradient()) == PushOutcome.REPEATED
    assert store.push(PLAN.run, 1, 7, 1, 99, gradient()) == PushOutcome.DROPPED
    store.save_snapshot()
    again = store_in(tmp_path)
    assert again.version == PLAN.max_steps and not again.is_finished  # another run may begin


def test_without_parameters_nothing_can_be_pushed_or_pulled(tmp_path):
    store = store_in(tmp_path)
    nothing = ("", 0, True, False)
    assert store.status == nothing
    assert store.pulled() == store.state() == (nothing, b"")
    with pytest.raises(CallError, match="holds no parameters"):
        store.push("", 0, 7, 1, 0, gradient())
