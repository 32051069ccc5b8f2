"""Folders that only one process may write to."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from terngrad import folder_lock
from terngrad.folder_lock import hold_alone


def test_a_folder_has_one_holder_at_a_time_and_another_is_told_which(tmp_path):
    held = hold_alone(str(tmp_path))
    who = f"process {os.getpid()} on {socket.gethostname()}"
    why = f"another ps, {who}, writes there; allowed is a folder of its own"
    with pytest.raises(ValueError, match=why):
        hold_alone(str(tmp_path), "ps")
    held.close()
    hold_alone(str(tmp_path)).close()


def test_a_killed_holder_does_not_keep_its_folder(tmp_path):
    hold = f"from {folder_lock.__name__} import hold_alone; held = hold_alone({str(tmp_path)!r})"
    wait = "print(flush=True); import time; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", f"{hold}; {wait}"], stdout=-1) as holder:
        holder.stdout.readline()
        with pytest.raises(ValueError, match=f"another training, process {holder.pid} on"):
            hold_alone(str(tmp_path))
        holder.send_signal(signal.SIGKILL)
    hold_alone(str(tmp_path)).close()


def test_where_the_file_system_has_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock.fcntl, "flock", flock)
    hold_alone(str(tmp_path)).close()
    assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()
