"""How a process ends that goes on without its launcher, and whether it is started again."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from terngrad.launcher import processes, state
from terngrad.launcher.process import Process
from terngrad.launcher.processes import supervise
from terngrad.launcher.state import StateFile


@pytest.fixture
def file(tmp_path):
    return StateFile(str(tmp_path / "one.json"))


@pytest.fixture
def run(tmp_path, file):
    """Supervises a shell script, which notes its runs; returns how often it ran, and the log."""
    log, runs = tmp_path / "log", tmp_path / "runs"
    log.touch()
    runs.touch()

    def run(commands, sleep=lambda secs: None):
        script = tmp_path / "my program.sh"
        script.write_text(f'echo >> "{runs}"\n{commands}\n')
        command = ["bash", str(script), "$1 'x'"]
        files = {"log": str(log), "state": str(tmp_path / "one.json")}
        supervise(Process("worker 0 (a:1)", command, "a", max_restarts=9, **files), sleep=sleep)
        return len(runs.read_text()), log.read_text().splitlines()

    return run


def test_a_process_that_is_killed_again_and_again_is_left_out(run, file):
    _, lines = run("kill -KILL $$")
    again = [f"Was killed by SIGKILL and is started again in {secs} s." for secs in (1, 2, 4, 8)]
    shown = [line for line in lines if "killed" in line]
    left_out = "Was killed by SIGKILL and is not started again after 5 runs of less than 30 s."
    assert shown == [*again, left_out]
    assert file.read().status == 128 + signal.SIGKILL


@pytest.mark.parametrize(("end", "status"), [("exit 0", 0), ("exit 3", 3), ("kill $$", 143)])
def test_a_process_that_ends_by_itself_or_as_asked_is_not_started_again(run, file, end, status):
    count, _ = run(f'(( $(wc -l < "${{0%/*}}/runs") == 2 )) && {end}\nkill -KILL $$')
    assert (count, file.read().status) == (2, status)


def test_a_process_is_not_started_again_after_a_stop(run, file):
    conditions = []

    def stop(secs):
        conditions.append(file.condition().text)
        file.ask_to_stop()

    count, _ = run("kill -KILL $$", sleep=stop)
    assert (count, file.condition().text) == (1, "ended by SIGKILL")
    assert conditions == ["was killed; is started again soon"]


def test_a_process_that_starts_during_a_stop_ends(run, file):
    file._path.touch()
    file.ask_to_stop()
    run("exec sleep 60")
    assert file.read().status == 128 + signal.SIGTERM


def test_arguments_reach_the_process_as_they_are(run):
    _, lines = run('printf "%s|" "$@"')
    assert lines[1:] == ["$1 'x'|"]


def test_a_process_whose_file_cannot_be_written_does_not_go_on(run, file):
    file._path.mkdir()
    with pytest.raises(OSError):
        run("exec sleep 60")


def test_a_program_that_got_the_same_process_id_is_not_taken_for_the_process(run, file):
    run("exit 0")
    with subprocess.Popen(["sleep", "900"], start_new_session=True) as other:
        began = state.start_mark(os.getpid())  # that of the first may be within the same tick
        record = dataclasses.replace(file.read(), pid=other.pid, start_mark=began)
        file.write(record)
        assert not record.is_alive
        (process,) = state.started_in(str(file._path.parent))
        assert processes.stop([process], 1).lines == ["worker 0 (a:1): ended with status 0"]
        assert other.poll() is None
        record = dataclasses.replace(record, start_mark=state.start_mark(other.pid))
        assert record.is_alive
        other.kill()
    assert not record.is_alive and state.start_mark(other.pid) is None


def test_a_start_checks_under_a_lock_and_leaves_a_process_that_runs_alone(run, file, monkeypatch):
    run("exit 0")
    own = os.getpid()
    file.write(dataclasses.replace(file.read(), pid=own, start_mark=state.start_mark(own)))
    record = file.read()
    script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    try_lock = [sys.executable, "-c", script, str(file._path.with_name(processes.LOCK))]
    checked, check = [], processes.check

    def note(own):
        checked.append(subprocess.run(try_lock, capture_output=True, text=True, check=False))
        return check(own)

    monkeypatch.setattr(processes, "check", note)
    process = Process(record.label, record.command, log=record.log, state=str(file._path))
    answer = processes.start([process], {})
    assert answer.refused == [record.label] and not answer.lines
    assert f"already runs (process {own})" in answer.problems[0]
    assert file.read() == record
    assert [done.stderr.splitlines()[-1][:15] for done in checked] == ["BlockingIOError"]


def test_a_process_whose_supervisor_is_lost_has_an_unknown_end(run, file):
    run("exit 0")
    for is_due in (False, True):
        lost = {"status": None, "is_due": is_due, "supervisor_start": None}
        file.write(dataclasses.replace(file.read(), **lost))
        assert file.condition().text.startswith("ended with unknown status: the host or")
    assert file.condition().is_problem


def test_the_file_of_an_earlier_version_is_read(run, file):
    run("exit 0")
    record = file.read()
    former = {"start_mark": "born", "supervisor": "watcher"}
    former["supervisor_start"] = "watcher_born"
    values = {former.get(k, k): v for k, v in dataclasses.asdict(record).items()}
    file._path.write_text(json.dumps(values))
    assert file.read() == record


def test_the_file_names_what_is_needed_to_find_the_process(run, file):
    run("exit 0")
    record = file.read()
    assert (record.label, record.host) == ("worker 0 (a:1)", "a")
    assert record.command == ["bash", f"{file._path.parent}/my program.sh", "$1 'x'"]
    assert (record.supervisor, record.is_supervised) == (os.getpid(), True)
    assert os.listdir(file._path.parent).count("one.json") == 1
