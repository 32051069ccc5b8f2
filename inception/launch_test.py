"""How the launcher ends, with small programs in place of the trainings."""

import array
import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import textwrap
import time
from pathlib import Path

import pytest

from inception.launch import main
from terngrad.launcher.restarts import Restarts
from terngrad.launcher.state import StateFile
from terngrad.testing.limits import HANG_SECS

PRELUDE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(__file__).parent
index = int(sys.argv[-1].partition("=")[2])
def save(*_):
    (folder / f"saved_{index}").touch()
    sys.exit(143)
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""
WAITING = "signal.signal(signal.SIGTERM, save); print('ready'); time.sleep(60)"
# Runs the launcher, which gets SIGTERM as it calls a function for the nth time.
SIGNALLED = """
import itertools, os, pkgutil, signal, sys
from inception import launch
name, nth, *arguments = sys.argv[1:]
owner, _, attribute = name.rpartition(".")
owner = pkgutil.resolve_name(owner)
function, calls = getattr(owner, attribute), itertools.count(1)
def call(*args, **kwargs):
    if next(calls) == int(nth):
        os.kill(os.getpid(), signal.SIGTERM)
    return function(*args, **kwargs)
setattr(owner, attribute, call)
sys.exit(launch.main(arguments))
"""
# Runs the launcher with shorter pauses.
IMPATIENT = """
import sys
from inception import launch
from terngrad.launcher import restarts, run
run.GRACE_SECS = 1.0
restarts._FIRST_PAUSE_SECS = 0.0625
sys.exit(launch.main(sys.argv[1:]))
"""
PAUSES = (0.0625, 0.125, 0.25, 0.5)


class Launcher:
    """A launcher of workers that run `program`, in `folder`; started by the fixture `launch`."""

    def __init__(self, folder, program, workers=2, options=(), run=("-m", "inception.launch")):
        self.folder = folder
        (folder / "stand_in.py").write_text(PRELUDE + textwrap.dedent(program))
        command = [sys.executable, *run, *options, str(workers), "stand_in", str(folder)]
        # Under nohup the tests ignore SIGHUP, and so would all that they start.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": f"{folder}:{os.getcwd()}"},
        )
        signal.signal(signal.SIGHUP, before)

    def wait_until(self, condition):
        deadline = time.monotonic() + HANG_SECS
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait_for_lines(self, line, count=2):
        """Of so many workers."""
        found = set()
        while len(found) < count:
            read = self.process.stdout.readline()
            assert read, f"no {line!r}: {self.process.stderr.read()}"
            if read.endswith(f"] {line}\n"):
                found.add(read.partition("]")[0])

    def saved(self):
        return sorted(path.name for path in self.folder.glob("saved_*"))

    def finish(self):
        """Its exit status, output and errors; it leaves no worker behind."""
        output, errors = self.process.communicate(timeout=HANG_SECS)
        assert workers_of(self.folder) == {}
        return self.process.returncode, output, errors


def workers_of(folder):
    """Processes of the workers by index."""
    found = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline") as file:
            words = file.read().split("\0")
            if str(folder) in words and words[-2].startswith("--task_id="):
                found[int(words[-2].partition("=")[2])] = int(entry)
    return found


@pytest.fixture
def launch(tmp_path):
    """Starts a launcher in a folder of its own; nothing of it outlives the test."""
    started = []

    def start(program, **options):
        started.append(Launcher(tmp_path, program, **options))
        return started[-1]

    yield start
    for launcher in started:
        launcher.process.kill()
        for pid in workers_of(tmp_path).values():
            os.kill(pid, signal.SIGKILL)
        launcher.process.communicate()


def test_an_output_whose_reader_goes_lets_all_workers_save(launch):
    launcher = launch(
        "signal.signal(signal.SIGTERM, save)\nwhile True: print('x' * 999); time.sleep(0.001)"
    )
    launcher.wait_for_lines("x" * 999)
    launcher.process.stdout.close()
    assert launcher.process.wait(HANG_SECS) == 128 + signal.SIGPIPE
    assert launcher.saved() == ["saved_0", "saved_1"]
    assert launcher.finish()[2] == ""


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "caf\ufffd"), ("ascii", "caf?")])
def test_a_byte_that_is_no_text_is_replaced(launch, monkeypatch, encoding, shown):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    launcher = launch("os.write(1, b'caf\\xe9\\n' + b'x' * 99_999 + b'\\nlast\\n')", workers=1)
    status, output, errors = launcher.finish()
    assert (status, errors) == (0, "")
    assert output == f"[0] {shown}\n[0] {'x' * 99_999}\n[0] last\n"


@pytest.mark.parametrize(
    ("name", "nth"), [("subprocess.Popen", 1), ("subprocess.Popen", 3), ("threading.Thread", 3)]
)
def test_a_signal_while_workers_are_started_leaves_none(launch, name, nth):
    run = ("-c", SIGNALLED, name, str(nth))
    status, _, errors = launch(WAITING, workers=4, run=run).finish()
    assert (status, errors) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(
    ("name", "nth"),
    [("rich.console.Console.print", 1), ("inception.cluster.members.worker_flags", 2)],
)
def test_a_signal_between_attempts_ends_without_another(launch, name, nth):
    run = ("-c", SIGNALLED, name, str(nth))
    status, output, errors = launch("sys.exit(3)", run=run, options=["--max_restarts=9"]).finish()
    assert (status, output.count("Restart"), errors) == (128 + signal.SIGTERM, 1, "")


def test_with_a_folder_for_logs_each_process_has_a_log_and_a_state_file(launch, tmp_path):
    logs = tmp_path / "my logs"
    launcher = launch(
        "print('line', index); sys.exit(index)", options=["--log_dir", str(logs), "--ps=1"]
    )
    assert launcher.finish()[0] == 1
    names = ("worker_0", "worker_1", "ps_0")
    assert {path.name for path in logs.iterdir()} == {
        f"{n}.{end}" for n in names for end in ("log", "json")
    }
    assert (logs / "worker_1.log").read_text() == "line 1\n"
    record = StateFile(str(logs / "worker_1.json")).read()
    assert (record.label, record.status) == ("1", 1)


def test_a_failed_training_is_started_again(launch):
    launcher = launch(
        """
        first = not (folder / f"failed_{index}").exists()
        (folder / f"failed_{index}").touch()
        sys.exit(3 if first else 0)
        """,
        options=["--max_restarts", "2"],
    )
    status, output, errors = launcher.finish()
    assert (status, errors) == (0, "")
    assert re.findall("Restart .*", output) == ["Restart 1 of 2 in 1 s, from the last checkpoint."]


@pytest.mark.slow
def test_a_training_that_fails_again_and_again_is_started_after_growing_pauses_then_no_more(launch):
    began = time.monotonic()
    launcher = launch("sys.exit(3)", run=("-c", IMPATIENT), options=["--max_restarts=9"])
    status, output, _ = launcher.finish()
    assert status == 3 and time.monotonic() - began > sum(PAUSES)
    assert re.findall(r"Restart (.*),", output) == [
        f"{i} of 9 in {secs} s" for i, secs in enumerate(PAUSES, 1)
    ]
    assert "The training is not started again after 5 runs of less than 30 s." in output


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_is_left_out_with_its_name(launch):
    program = """
        if index == 1 and "worker" in " ".join(sys.argv):
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for("go on")
    """
    options = ["--ps=1", "--max_restarts=9"]
    launcher = launch(program, run=("-c", IMPATIENT), options=options)
    for secs in PAUSES:
        while (line := launcher.process.stdout.readline()) and "is started again" not in line:
            pass
        assert line == f"1 was killed and is started again in {secs} s.\n"
    left_out = "1 was killed and is not started again after 5 runs of less than 30 s.\n"
    assert launcher.process.stdout.readline() == left_out
    (launcher.folder / "go on").touch()
    assert launcher.finish()[0] == 0


def test_pauses_are_counted_for_each_process_and_end_with_a_long_run():
    now = [0.0]
    restarts = Restarts(7, clock=lambda: now[0])

    def run(name, secs):
        restarts.note_start(name)
        now[0] += secs
        return restarts.next_start(name)[0]

    assert [run("a", 29), run("a", 29), run("b", 1), run("a", 30), run("a", 1)] == [1, 2, 1, 1, 1]
    assert [run("a", 100), run("b", 100), run("b", 100)] == [1, 1, None]
    assert restarts.next_start("b")[1] == ""


NETWORK = """
    import subprocess
    hosts = [word for word in sys.argv if word.startswith("--worker_hosts=")]
    told = subprocess.check_output(["tc", "qdisc", "show", "dev", "eth0"], text=True)
    print(*hosts, "limit:", told.split()[1], flush=True)
"""


@pytest.mark.parametrize(("rate", "limit"), [("50mbit", "tbf"), ("unshaped", "noqueue")])
def test_with_a_bandwidth_each_process_has_a_host_of_its_own(launch, has_networks, rate, limit):
    launcher = launch(NETWORK, options=[f"--bandwidth={rate}", "--ps=1"])
    status, output, errors = launcher.finish()
    assert (status, errors) == (0, "")
    hosts = "--worker_hosts=10.77.0.1:2222,10.77.0.2:2222"
    expected = [f"[{label}] {hosts} limit: {limit}" for label in ("0", "1", "ps 0")]
    assert sorted(output.splitlines()) == expected
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert f"launch{launcher.process.pid}" not in left


def test_law_10_a_bandwidth_that_is_none_is_told():
    with pytest.raises(SystemExit, match=r"--bandwidth: '9'; it must be unshaped, or a rate"):
        main(["--bandwidth=9", "2", "program"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_all_workers_save(launch, number):
    launcher = launch(WAITING, options=["--max_restarts=1"])
    launcher.wait_for_lines("ready")
    launcher.process.send_signal(number)
    assert launcher.finish() == (128 + number, "", "")
    assert launcher.saved() == ["saved_0", "saved_1"]


def test_nohup_keeps_a_training_alive(launch):
    run = ("-c", "import os, sys; os.execvp('nohup', ['nohup', sys.executable, *sys.argv[1:]])")
    launcher = launch(WAITING, run=(*run, "-m", "inception.launch"))
    launcher.wait_for_lines("ready")
    launcher.process.send_signal(signal.SIGHUP)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish()[0] == 128 + signal.SIGTERM


@pytest.mark.parametrize("printed", ["", "x" * 2999])
def test_a_second_ctrl_c_kills_even_if_nobody_reads_the_output(launch, printed):
    launcher = launch(
        f"""
        signal.signal(signal.SIGTERM, lambda *_: (folder / f"saved_{{index}}").touch())
        (folder / f"ready_{{index}}").touch()
        while True:
            print({printed!r}, end="\\n" if {bool(printed)} else "")
            time.sleep(0.01)
        """
    )
    fcntl.fcntl(launcher.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    launcher.wait_until(lambda: len(list(launcher.folder.glob("ready_*"))) == 2)
    launcher.wait_until(lambda: unread_bytes(launcher.process.stdout) >= len(printed))
    launcher.process.send_signal(signal.SIGINT)
    launcher.wait_until(lambda: launcher.saved() == ["saved_0", "saved_1"])
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.process.wait(HANG_SECS) == 128 + signal.SIGINT
    assert launcher.finish()[2] == ""


def unread_bytes(pipe):
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0]


def test_the_exit_status_is_that_of_the_worker_that_failed_first(launch):
    launcher = launch(
        """
        if index == 1:
            (folder / "pid").write_text(str(os.getpid()))
            (folder / "started").touch()
            sys.exit(3)
        wait_for("started")
        stat = pathlib.Path("/proc", (folder / "pid").read_text(), "stat")
        while stat.exists():  # until the launcher has noticed
            pass
        sys.exit(4)
        """
    )
    assert launcher.finish()[0] == 3


def test_a_signal_after_a_failure_keeps_its_status_and_starts_no_other_attempt(launch):
    launcher = launch(
        """
        if index == 1:
            wait_for("waits")
            (folder / "fails").write_text(str(os.getpid()))
            sys.exit(3)
        signal.signal(signal.SIGTERM, save)
        (folder / "waits").touch()
        time.sleep(60)
        """,
        options=["--max_restarts=1"],
    )
    failed = launcher.folder / "fails"
    launcher.wait_until(lambda: failed.exists() and failed.read_text())
    noticed = Path("/proc", failed.read_text())
    launcher.wait_until(lambda: not noticed.exists())
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.finish() == (3, "", "")
    assert launcher.saved() == ["saved_0"]


def test_workers_end_by_themselves_after_a_killed_launcher(launch):
    launcher = launch("while True: print('x'); time.sleep(0.01)")
    launcher.wait_for_lines("x")
    launcher.process.kill()
    launcher.process.wait()
    deadline = time.monotonic() + HANG_SECS
    while workers_of(launcher.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers_of(launcher.folder)
    launcher.finish()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["2", "--max_restarts=1", "program"], "PROGRAM is '--max_restarts=1'; launch's own flags"),
        (["--max_restarts", "x", "2", "program"], "--max_restarts: 'x'; allowed are whole"),
        (["two", "program"], "WORKERS: 'two'; allowed are whole numbers"),
        (["--max_restarts=-1", "1", "program"], "--max_restarts: '-1'; allowed are whole"),
        (["--log_dir=/proc/x", "1", "program"], "--log_dir: cannot make /proc/x: "),
        (["0", "program"], "WORKERS: '0'; allowed are whole numbers"),
        (["2"], "needs the number of workers and a program"),
        ([], "needs the number of workers and a program"),
    ],
)
def test_law_10_wrong_arguments_are_told(arguments, told):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert str(end.value).startswith(f"launch: {told}")


def test_the_help_is_shown(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "--max_restarts=N" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("options", "goes_on"), [(["--ps=1"], True), ([], False)])
def test_with_parameter_servers_the_others_decide_whether_they_go_on(
    launch, tmp_path, options, goes_on
):
    program = """
    if index == 0:
        sys.exit(3)
    time.sleep(4)
    (folder / "ended").touch()
    """
    launcher = launch(program, run=("-c", IMPATIENT), options=options)
    status, output, errors = launcher.finish()
    assert status == 3, output + errors
    assert (tmp_path / "ended").exists() == goes_on
