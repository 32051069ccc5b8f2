"""A file and its name are on the disk together, and one process at a time writes to a folder."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from terngrad import files
from terngrad.files import lock_folder


@pytest.fixture
def acts(monkeypatch):
    """What was done to the disk, in its order: paths that were synced, and new names."""
    done = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        done.append(("on disk", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_replace(old, new):
        done.append(("named", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return done


def test_content_comes_before_the_name_and_the_folder_after_it(tmp_path, acts):
    (tmp_path / "new").write_text("content")
    files.publish(str(tmp_path / "new"), str(tmp_path / "final"))
    new, final = str(tmp_path / "new"), str(tmp_path / "final")
    assert acts == [("on disk", new), ("named", final), ("on disk", str(tmp_path))]
    assert (tmp_path / "final").read_text() == "content"


def test_a_file_that_cannot_be_synced_gets_no_name(tmp_path, monkeypatch):
    (tmp_path / "new").write_text("content")

    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        files.publish(str(tmp_path / "new"), str(tmp_path / "final"))
    assert not (tmp_path / "final").exists()


def test_a_folder_has_one_holder_at_a_time_and_errors_name_it(tmp_path):
    held = lock_folder(str(tmp_path))
    who = f"process {os.getpid()} on {socket.gethostname()}"
    why = f"another ps, {who}, writes there; allowed is a folder of its own"
    with pytest.raises(ValueError, match=why):
        lock_folder(str(tmp_path), "ps")
    held.close()
    lock_folder(str(tmp_path)).close()


def test_a_killed_holder_does_not_keep_its_folder(tmp_path):
    hold = f"from {files.__name__} import lock_folder; held = lock_folder({str(tmp_path)!r})"
    wait = "print(flush=True); import time; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", f"{hold}; {wait}"], stdout=-1) as holder:
        holder.stdout.readline()
        with pytest.raises(ValueError, match=f"another training, process {holder.pid} on"):
            lock_folder(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
    lock_folder(str(tmp_path)).close()


def test_where_the_file_system_has_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    lock_folder(str(tmp_path)).close()
    assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
