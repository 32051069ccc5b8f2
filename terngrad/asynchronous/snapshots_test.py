"""Snapshots: complete or absent, of one run; a lost ps loses a bounded number of updates."""

import dataclasses
import errno
import os
import resource
import shutil
import time
from concurrent import futures

import numpy as np
import pytest

from terngrad.asynchronous import snapshots
from terngrad.asynchronous import store as store_module
from terngrad.asynchronous.snapshots import SnapshotManager, SnapshotSettings
from terngrad.asynchronous.store import NoSnapshotError, PushOutcome
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


@pytest.mark.parametrize("updates", [0, 3, 4, 11])
def test_a_ps_that_dies_loses_fewer_updates_than_a_snapshot_takes(tmp_path, updates):
    store = with_run(store_in(tmp_path), dataclasses.replace(PLAN, optimizer="momentum"))
    states = [store.state()]
    for i in range(updates):
        push(store, 1, first=i + 1)
        states.append(store.state())
    again = store_in(tmp_path)
    assert updates - 4 < again.version <= updates
    assert again.state()[1] == again.pulled()[1] == b""  # another run may begin
    again.enter(0, PLAN.run, CONFIGURATION)
    assert again.state() == states[again.version]


def test_what_was_applied_before_a_snapshot_is_not_applied_after_it(tmp_path):
    store = with_run(store_in(tmp_path, steps=1))
    push(store, 3)
    again = store_in(tmp_path, steps=1)
    assert again.version == 3
    again.enter(0, PLAN.run, CONFIGURATION)
    push(again, 3)
    assert again.version == 3
    push(again, 1, first=4)
    assert again.version == 4


def test_a_snapshot_serves_the_workers_of_its_run_and_no_others(tmp_path):
    with_run(store_in(tmp_path))
    again = store_in(tmp_path)
    assert again.status == (PLAN.run, 0, True, False)
    assert again.enter(1, "", CONFIGURATION).waits
    assert again.enter(1, "another run", CONFIGURATION).waits
    assert not again.enter(1, PLAN.run, CONFIGURATION).waits
    assert not again.enter(0, "", CONFIGURATION).waits


def test_a_damaged_snapshot_is_named_and_an_older_one_is_used(tmp_path):
    push(with_run(store_in(tmp_path)), 8)
    newest, older = sorted(snapshots.all_snapshots(str(tmp_path)), key=len)[-1], 4
    with open(newest, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"\xff")
    lines = []
    assert store_in(tmp_path, log=lines.append).version == older
    aside = f"{tmp_path}/set-aside.{os.path.basename(newest)}"
    assert f"{newest}: is damaged; set aside as {aside}." in lines
    assert os.path.exists(aside)


@pytest.mark.parametrize("cut", [0, 10, 100])
def test_a_snapshot_that_is_cut_short_is_named(tmp_path, cut):
    path = snapshots.SnapshotWriter(str(tmp_path)).save(5, {"plan": "x" * 50}, bytes(1000))
    os.truncate(path, cut)
    with pytest.raises(snapshots.SnapshotError, match=rf"{path} is (not a snapshot|damaged)"):
        snapshots.load(path)


def test_a_snapshot_of_another_ps_or_another_number_of_ps_is_named_and_not_used(tmp_path):
    with_run(store_in(tmp_path))
    lines = []
    assert store_in(tmp_path, ps=1, count=2, log=lines.append).version == 0
    assert "is not used: it was written by ps 0 of 1" in lines[0]


def test_the_three_newest_snapshots_are_kept(tmp_path):
    store = with_run(store_in(tmp_path))
    push(store, 17)
    assert [snapshots.version_of(p) for p in snapshots.all_snapshots(str(tmp_path))] == [8, 12, 16]
    assert (tmp_path / "snapshot.saving").stat().st_size >= len(store.state()[1])  # for the next
    store.close()
    assert sorted(os.listdir(tmp_path)) == ["snapshot-12", "snapshot-16", "snapshot-17"]


def test_no_kill_leaves_more_than_one_unfinished_snapshot(tmp_path, monkeypatch):
    def killed(handle):
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", killed)
        for version in (4, 8):
            with pytest.raises(SystemExit):
                snapshots.SnapshotWriter(str(tmp_path)).save(version, {}, bytes(1000))
    assert len(os.listdir(tmp_path)) == 1
    snapshots.SnapshotWriter(str(tmp_path)).save(8, {}, bytes(1000))
    assert os.listdir(tmp_path) == ["snapshot-8"]


def test_a_snapshot_is_written_where_no_descriptor_is_left(tmp_path):
    writer = snapshots.SnapshotWriter(str(tmp_path))
    writer.save(4, {}, bytes(1000))
    writer.reserve(1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # fewer than are open
    try:
        writer.save(8, {}, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert snapshots.load(f"{tmp_path}/snapshot-8") == ({}, bytes(2000))


class _Disk:
    """Lets snapshots fail while `is_full`, and counts the attempts."""

    def __init__(self, monkeypatch):
        self.is_full, self.attempts = True, 0
        save = snapshots.SnapshotWriter.save

        def failing(writer, *arguments):
            self.attempts += 1
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(writer, *arguments)

        monkeypatch.setattr(snapshots.SnapshotWriter, "save", failing)


def test_a_ps_that_cannot_write_snapshots_applies_no_updates_that_it_could_lose(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(store_module, "_SNAPSHOT_SECS", 0.2)
    lines = []
    store = with_run(store_in(tmp_path, log=lines.append))
    push(store, 3)
    disk = _Disk(monkeypatch)
    push(store, 1, first=4)  # the fourth makes a snapshot due
    with pytest.raises(NoSnapshotError, match=r"no snapshot of step 4 .* No space left on device"):
        push(store, 1, first=5)
    assert store.push(PLAN.run, 0, 7, 4, 0, gradient()) == PushOutcome.REPEATED  # it was applied
    assert store.pulled()[1] and store.version == 4
    assert any("No space left on device; tries again in 1 s" in line for line in lines)
    assert store_in(tmp_path).version == 0  # as promised: no more than 4 were lost
    with futures.ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(store_module, "_SNAPSHOT_SECS", SECS)
        waiting = threads.submit(push, store, 1, 0, 5)
        disk.is_full = False
        deadline = time.monotonic() + SECS
        while not waiting.done() and time.monotonic() < deadline:
            store.retry_snapshot()
            time.sleep(0.05)
        assert waiting.result() is None
    assert lines[-1] == "Wrote the snapshot of step 4, and applies updates again."
    assert (store.version, store_in(tmp_path).version) == (5, 4)


def test_a_snapshot_that_fails_is_tried_again_with_growing_pauses(tmp_path, monkeypatch):
    disk, now, lines = _Disk(monkeypatch), [0.0], []
    manager = SnapshotManager(
        SnapshotSettings(str(tmp_path), 4), 0, 1, lines.append, clock=lambda: now[0]
    )
    updates = Updates(PLAN, store_in(tmp_path).read_plan(PLAN.to_json().encode()).shard, None, None)
    tried = []
    for second in range(100):
        now[0] = float(second)
        if manager.may_retry():
            tried.append(second)
            manager.save("", {}, updates)
    assert tried == [0, 1, 3, 7, 15, 31, 61, 91]
    assert disk.attempts == len(lines) == len(tried)
    disk.is_full, now[0] = False, 200.0
    manager.save("", {}, updates)
    assert not manager.failure and not manager.is_due(3) and manager.is_due(4)


def test_a_run_whose_first_snapshot_fails_waits_with_its_first_update(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_SNAPSHOT_SECS", 0.2)
    disk = _Disk(monkeypatch)
    store = with_run(store_in(tmp_path))
    with pytest.raises(NoSnapshotError):
        push(store, 1)
    disk.is_full = False
    store.save_snapshot()
    push(store, 1)
    assert store.version == 1


def test_an_older_snapshot_may_be_chosen_once(tmp_path):
    push(with_run(store_in(tmp_path)), 13)
    lines = []

    def chosen(version):
        store = store_in(tmp_path, log=lines.append, chosen=version)
        store.enter(0, PLAN.run, CONFIGURATION)
        return store

    with pytest.raises(LookupError, match="there are snapshots of these steps: 4, 8, 12"):
        chosen(3)
    store = chosen(10)
    assert store.version == 8
    aside = f"{tmp_path}/set-aside.snapshot-12"
    assert lines[0] == f"{tmp_path}/snapshot-12: newer than the chosen step; set aside as {aside}."
    push(store, 4, first=14)
    assert chosen(10).version == 12  # a ps that is started again does not lose these four
    again = (
        f"step 10 was chosen before, so newer snapshots count; remove {tmp_path}/chosen-snapshot"
    )
    assert f"{again} to choose it again." in lines
    assert chosen(8).version == 8
    push(store_in(tmp_path), 0)  # without a choice, so that the next one is new
    push(chosen(8), 4, first=18)
    assert chosen(-1).version == 12 and chosen(8).version == 8


def test_an_unusable_snapshot_is_reported_and_an_older_one_is_loaded(tmp_path, monkeypatch):
    push(with_run(store_in(tmp_path)), 4)
    description, content = snapshots.load(f"{tmp_path}/snapshot-4")
    writer = snapshots.SnapshotWriter(str(tmp_path))
    writer.save(4, description, np.float32(np.nan).tobytes() + content[4:])

    def refuse(*names):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(snapshots.os, "replace", refuse)
    lines = []
    assert store_in(tmp_path, log=lines.append).version == 0
    assert "it cannot be set aside: " in lines[0] and lines[1].startswith(f"Loaded {tmp_path}/")


def test_snapshots_are_written_again_after_their_folder_was_removed(tmp_path):
    folder = tmp_path / "ps_0"
    store = with_run(store_in(folder))
    push(store, 4)
    shutil.rmtree(folder)
    push(store, 4, first=5)
    assert os.listdir(folder) and store_in(folder).version == 8


def test_without_snapshots_nothing_is_written(tmp_path):
    push(with_run(store_in(tmp_path, steps=0)), 3)
    assert not os.listdir(tmp_path)
