"""Snapshots: complete or absent, of one run; a lost ps loses a bounded number of updates."""

import dataclasses
import os
import threading
from concurrent import futures

import numpy as np
import pytest

from terngrad.asynchronous import snapshots
from terngrad.asynchronous.keeping import Keeping
from terngrad.asynchronous.proposal import CallError
from terngrad.asynchronous.store import OtherRunError, Pushed, Store
from terngrad.asynchronous.updates import Updates
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.plans import FACTS, PLAN, gradient
from terngrad.training import schedules

WORKERS = ["one:1", "two:2"]
SECS = 60.0


def store_in(folder, steps=4, ps=0, count=1, tell=print):
    make = lambda text: schedules.fixed(0.1)
    return Store(ps, count, WORKERS, ReferenceKernels(), make, Keeping(str(folder), steps), tell)


def begun(store, plan=PLAN, version=0):
    _, shard, size = store.expect(plan.to_json().encode())
    store.begin(plan, shard, np.ones(size // 4, "<f4").tobytes(), version)
    return store


def push(store, count, worker=0, first=1):
    for sequence in range(first, first + count):
        store.push(PLAN.run, worker, 7, sequence, store.version, gradient(word=1))


@pytest.mark.parametrize("updates", [0, 3, 4, 11])
def test_a_ps_that_dies_loses_fewer_updates_than_a_snapshot_takes(tmp_path, updates):
    store = begun(store_in(tmp_path), dataclasses.replace(PLAN, optimizer="momentum"))
    states = [store.state()]
    for i in range(updates):
        push(store, 1, first=i + 1)
        states.append(store.state())
    again = store_in(tmp_path)
    assert updates - 4 < again.version <= updates
    assert again.state()[1] == again.pulled()[1] == b""  # another run may begin
    again.enter(0, PLAN.run, FACTS)
    assert again.state() == states[again.version]


def test_what_was_applied_before_a_snapshot_is_not_applied_after_it(tmp_path):
    store = begun(store_in(tmp_path, steps=1))
    push(store, 3)
    again = store_in(tmp_path, steps=1)
    assert again.version == 3
    again.enter(0, PLAN.run, FACTS)
    push(again, 3)
    assert again.version == 3
    push(again, 1, first=4)
    assert again.version == 4


def test_a_gradient_of_another_run_is_not_applied(tmp_path):
    store = begun(store_in(tmp_path))
    begun(store, dataclasses.replace(PLAN, run="another run"))
    with pytest.raises(OtherRunError):
        push(store, 1)
    with pytest.raises(OtherRunError):
        store.pushed_bytes(PLAN.run)
    assert store.status == ("another run", 0, False, False)


def test_a_gradient_that_comes_while_a_run_begins_is_not_applied_to_it(tmp_path, monkeypatch):
    store = begun(store_in(tmp_path))
    checking, saving = threading.Event(), threading.Event()
    save, check = snapshots.save, Updates.check

    def save_slowly(*args):
        saving.set()
        assert checking.wait(SECS)
        return save(*args)

    def check_slowly(updates, content):
        checking.set()
        assert saving.wait(SECS)
        return check(updates, content)

    monkeypatch.setattr(snapshots, "save", save_slowly)
    monkeypatch.setattr(Updates, "check", check_slowly)
    with futures.ThreadPoolExecutor(2) as threads:
        pushed = threads.submit(push, store, 1)
        assert checking.wait(SECS)
        began = threads.submit(begun, store, dataclasses.replace(PLAN, run="another run"))
        assert isinstance(pushed.exception(SECS), OtherRunError)
        began.result(SECS)
    assert store.status == ("another run", 0, False, False)


def test_a_run_that_begins_replaces_another_or_goes_on_is_told(tmp_path):
    said = []
    store = begun(store_in(tmp_path, tell=said.append))
    push(store, 4)
    begun(store, dataclasses.replace(PLAN, run="another run"), version=2)
    again = store_in(tmp_path, tell=said.append)
    again.enter(0, "another run", FACTS)
    again.enter(1, "another run", FACTS)
    assert said == [
        "Run a run begins at step 0.",
        "Run another run begins at step 2, in the place of run a run at step 4.",
        f"Loaded {tmp_path}/snapshot-2; waits for the workers of its run.",
        "Run another run continues at step 2.",
    ]


def test_pushes_wait_for_the_end_of_a_run_or_for_its_going_on(tmp_path):
    store = begun(store_in(tmp_path))
    for then, outcome in [(store.go_on, Pushed.APPLIED), (store.end, Pushed.DROPPED)]:
        store.hold_pushes()
        with futures.ThreadPoolExecutor(1) as threads:
            sequence = store.version + 1
            pushed = threads.submit(store.push, PLAN.run, 0, 7, sequence, 0, gradient())
            with pytest.raises(futures.TimeoutError):
                pushed.result(0.2)
            then()
            assert pushed.result(SECS) == outcome
    assert store.version == 1


def test_a_snapshot_serves_the_workers_of_its_run_and_no_others(tmp_path):
    begun(store_in(tmp_path))
    again = store_in(tmp_path)
    assert again.status == (PLAN.run, 0, True, False)
    assert again.enter(1, "", FACTS).waits
    assert again.enter(1, "another run", FACTS).waits
    assert not again.enter(1, PLAN.run, FACTS).waits
    assert not again.enter(0, "", FACTS).waits


def test_another_run_replaces_a_snapshot(tmp_path):
    push(begun(store_in(tmp_path)), 9)
    other = dataclasses.replace(PLAN, run="another run")
    begun(store_in(tmp_path), other, version=2)
    again = store_in(tmp_path)
    assert again.status == ("another run", 2, True, False)


def test_a_damaged_snapshot_is_named_and_an_older_one_is_used(tmp_path):
    push(begun(store_in(tmp_path)), 8)
    newest, older = sorted(snapshots.all_snapshots(str(tmp_path)), key=len)[-1], 4
    with open(newest, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"\xff")
    said = []
    assert store_in(tmp_path, tell=said.append).version == older
    assert f"{newest} is damaged; looking for an older snapshot." in said


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_a_snapshot_that_is_cut_short_is_named(tmp_path, cut):
    path = snapshots.save(str(tmp_path), 5, {"plan": "x" * 50}, bytes(1000))
    os.truncate(path, cut)
    with pytest.raises(snapshots.SnapshotError, match=rf"{path} is (not a snapshot|damaged)"):
        snapshots.load(path)


def test_a_snapshot_of_another_ps_or_another_number_of_ps_is_named_and_not_used(tmp_path):
    begun(store_in(tmp_path))
    said = []
    assert store_in(tmp_path, ps=1, count=2, tell=said.append).version == 0
    assert "is not used: it was written by ps 0 of 1" in said[0]


def test_the_two_newest_snapshots_are_kept(tmp_path):
    push(begun(store_in(tmp_path)), 13)
    assert [snapshots.version_of(p) for p in snapshots.all_snapshots(str(tmp_path))] == [8, 12]
    assert len(os.listdir(tmp_path)) == 2


def test_no_kill_leaves_more_than_one_unfinished_snapshot(tmp_path, monkeypatch):
    def killed(handle):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        for version in (4, 8):
            with pytest.raises(SystemExit):
                snapshots.save(str(tmp_path), version, {}, bytes(1000))
    assert len(os.listdir(tmp_path)) == 1
    snapshots.save(str(tmp_path), 8, {}, bytes(1000))
    assert os.listdir(tmp_path) == ["snapshot-8"]


def test_without_snapshots_nothing_is_written(tmp_path):
    push(begun(store_in(tmp_path, steps=0)), 3)
    assert not os.listdir(tmp_path)


def test_staleness_is_the_updates_between_pull_and_push(tmp_path):
    store = begun(store_in(tmp_path))
    for worker, version in [(0, 0), (1, 0), (0, 1), (1, 0)]:
        store.push(PLAN.run, worker, 7, store.version + 1, version, gradient())
    assert store.untold_staleness() == [0, 1, 1, 3]
    assert store.untold_staleness() == []
    found = store.take_staleness()
    assert (found.count, found.mean, found.largest) == (4, 1.25, 3)


def test_no_update_comes_after_the_last(tmp_path):
    store = begun(store_in(tmp_path), version=PLAN.max_steps - 2)
    push(store, 5)
    assert store.version == PLAN.max_steps and store.is_finished
    assert store.push(PLAN.run, 0, 7, 2, 99, gradient()) == Pushed.KNOWN
    assert store.push(PLAN.run, 1, 7, 1, 99, gradient()) == Pushed.DROPPED
    store.keep()
    again = store_in(tmp_path)
    assert again.version == PLAN.max_steps and not again.is_finished  # another run may begin


def test_without_parameters_nothing_can_be_pushed_or_pulled(tmp_path):
    store = store_in(tmp_path)
    nothing = ("", 0, True, False)
    assert store.status == nothing
    assert store.pulled() == store.state() == (nothing, b"")
    with pytest.raises(CallError, match="holds no parameters"):
        store.push("", 0, 7, 1, 0, gradient())
