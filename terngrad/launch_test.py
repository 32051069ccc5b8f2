"""The launcher: labels, exit status, and how all processes end."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from terngrad import launch
from terngrad.launcher import state
from terngrad.launcher.process import REACHED
from terngrad.testing.processes import Started, descendants, wait_for_files, wait_until

PROGRAM = """
import os, sys, time
rank = os.environ["TERNGRAD_RANK"]
print("worker", rank, *sys.argv[1:], os.environ["TERNGRAD_HOSTS"], os.getcwd(), flush=True)
if (sys.argv[1], rank) == ("fail", "1"):
    sys.exit(5)
time.sleep(900)
"""

# Takes the place of ssh: runs the last word of its command line on this machine, where no signal of
# ssh reaches it, and only pipes connect the two.
SSH = """
import os, subprocess, sys, threading
assert sys.argv[-3] == "--"
pipe = subprocess.PIPE
there = subprocess.Popen(
    ["sh", "-c", sys.argv[-1]], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
)
def copy(source, to):
    try:
        while some := source.read1():
            to.write(some)
            to.flush()
    except OSError:  # nobody reads
        os._exit(255)
def pass_on():
    copy(sys.stdin.buffer, there.stdin)
    there.stdin.close()
threading.Thread(target=pass_on, daemon=True).start()
errors = threading.Thread(target=copy, args=(there.stderr, sys.stderr.buffer))
errors.start()
copy(there.stdout, sys.stdout.buffer)
errors.join()
os._exit(there.wait())  # the other thread may hold the lock of standard input
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return str(path)


@pytest.fixture
def through_ssh(tmp_path):
    """Options that start two processes on other machines."""
    ssh = tmp_path / "ssh.py"
    ssh.write_text(SSH)
    return ["--hosts", "one,two", "--ssh", shlex.join([sys.executable, str(ssh)])]


@pytest.fixture(params=["here", pytest.param("through ssh", marks=pytest.mark.exhaustive)])
def places(request, through_ssh):
    """Options that start two processes."""
    return ["-n", "2"] if request.param == "here" else through_ssh


@contextlib.contextmanager
def launched(*arguments):
    with Started([sys.executable, "-c", LAUNCH, *arguments], in_own_group=True) as run:
        yield run


def all_started(run):
    """Waits until both processes have printed that; returns the ids of all that run."""
    for rank in "01":
        run.wait_for(rf"^\[{rank}.*\] started")
    return descendants(run.process.pid)


LAUNCH = """
import sys
from terngrad import launch
from terngrad.launcher import run
launch._NOTICE_SECS = run._PS_GRACE_SECS = 0.1
sys.exit(launch.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("places", ["here", "through ssh"], indirect=True)
def test_each_process_has_its_rank_arguments_label_and_a_hidden_secret(program, places):
    with launched(*places, program, "wait", "--flag=1 2") as run:
        for rank in "01":
            run.wait_for(rf"^\[{rank}.*\] worker {rank} wait --flag=1 2 \S+:\d+,\S+:\d+ /")
        started = [Path("/proc", str(process)) for process in descendants(run.process.pid)]
        commands = [(folder / "cmdline").read_bytes() for folder in started]
        variables = [(folder / "environ").read_bytes().split(b"\0") for folder in started]
    secrets = {
        word.partition(b"=")[2]
        for words in variables
        for word in words
        if b"TERNGRAD_RANK=" in b"".join(words) and word.startswith(b"TERNGRAD_SECRET=")
    }
    assert len(secrets) == 1
    (secret,) = secrets
    assert len(secret) == 32
    assert commands and secret not in b"".join(commands)


def test_a_command_of_another_machine_has_no_status_of_ssh():
    command = [sys.executable, "-m", "terngrad.launcher.remote_command", "bash", "-c", "exit 255"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as there:
        print(file=there.stdin, flush=True)  # no secret
        assert there.wait() == 254
        assert there.stdout.read() == f"{REACHED}\n"


@pytest.mark.slow
def test_a_failure_ends_the_others_and_gives_the_exit_status(program, places):
    with launched(*places, program, "fail") as run:
        assert run.finish() == 5, run.output
        assert re.search("^1.* ended with 5: the others are asked to end", run.output, re.M)


@pytest.mark.slow
def test_a_module_may_follow_two_hyphens():
    with launched("-n", "2", "--", "-m", "platform") as run:
        assert len(re.findall(r"^\[[01]\] Linux", run.succeed(), re.M)) == 2


@pytest.mark.slow
def test_lines_may_be_those_of_one_worker_and_of_each_in_a_file(tmp_path, places):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys; rank = os.environ['TERNGRAD_RANK']\n"
        "print('out', rank); print('error', rank, file=sys.stderr)"
    )
    logs = tmp_path / "new" / "logs"
    for _ in range(2):
        with launched("--show=0", "--log_dir", str(logs), *places, str(program)) as run:
            lines = run.succeed().splitlines()
        shown = sorted(re.sub(r"^\[(\d).*?\]", r"\1", line) for line in lines)
        assert shown == ["0 error 0", "0 out 0", "1 error 1"]
    assert sorted(path.name for path in logs.glob("*.log")) == ["worker_0.log", "worker_1.log"]
    for rank in "01":  # a second run adds to them
        found = (logs / f"worker_{rank}.log").read_text().splitlines()
        assert sorted(found) == [f"error {rank}"] * 2 + [f"out {rank}"] * 2


@pytest.mark.slow
def test_an_interpreter_that_is_missing_ends_in_one_line(program):
    with launched("-n", "2", "--python=/no/python", program, "ok") as run:
        assert run.finish() == 1
        assert run.output.strip() == "launch: cannot start /no/python: No such file or directory"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all(program, places, number):
    with launched(*places, program, "wait") as run:
        for rank in "01":
            run.wait_for(f"worker {rank}")
        run.process.send_signal(number)
        assert run.finish() == 128 + number, run.output
        assert ("KeyboardInterrupt" in run.output) == (number == signal.SIGINT)
        assert not run.outlived()


@pytest.mark.slow
def test_a_process_on_another_machine_that_is_stopped_saves_first(tmp_path, through_ssh):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, signal, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "rank = os.environ['TERNGRAD_RANK']\n"
        "def save(*_):\n"
        "    (folder / f'saving_{rank}').touch()\n"
        "    while not (folder / 'go').exists():\n"
        "        time.sleep(0.01)\n"
        "    print('saved', flush=True)\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('started', flush=True)\n"
        "time.sleep(900)"
    )
    logs = ["--log_dir", str(tmp_path / "logs")]
    with launched(*through_ssh, *logs, str(program)) as run:
        all_started(run)
        with launched("--stop", *logs) as stop:
            wait_for_files(tmp_path / "saving_0", tmp_path / "saving_1")
            assert stop.process.poll() is None, stop.output
            (tmp_path / "go").touch()
            assert stop.finish() == 0, stop.output
        assert run.finish() == 0, run.output
    assert len(re.findall(r"\[[01] \w+\] saved", run.output)) == 2, run.output
    assert stop.output.splitlines() == ["0 one: ended with status 0", "1 two: ended with status 0"]


@pytest.mark.slow
def test_a_process_on_another_machine_saves_when_its_launcher_is_killed(tmp_path, through_ssh):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, pathlib, signal, time\n"
        "def save(*_):\n"
        "    for i in range(100):\n"
        "        print('saving', i, flush=True)\n"
        "        time.sleep(0.01)\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'saved_' + os.environ['TERNGRAD_RANK']).touch()\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('started', flush=True)\n"
        "time.sleep(900)"
    )
    with launched(*through_ssh, str(program)) as run:
        pids = all_started(run)
        run.process.kill()
        wait_until(lambda: not any(map(state.start_mark, pids)), "all have ended")
    assert sorted(path.name for path in tmp_path.glob("saved_*")) == ["saved_0", "saved_1"]


@pytest.mark.slow
def test_a_second_ctrl_c_kills_a_process_on_another_machine(tmp_path, through_ssh):
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGINT, lambda *_: print('asked', flush=True))\n"
        "print('started', flush=True)\n"
        "while True: time.sleep(900)"
    )
    with launched(*through_ssh, str(program)) as run:
        pids = all_started(run)
        run.process.send_signal(signal.SIGINT)
        run.wait_for("asked")
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 128 + signal.SIGINT, run.output
    assert [pid for pid in pids if state.start_mark(pid)] == []


@pytest.mark.slow
def test_what_a_killed_launcher_left_is_shown_and_stopped_by_another(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import time; print('started', flush=True); time.sleep(900)")
    logs = ["--log_dir", str(tmp_path / "logs")]
    with launched("-n", "2", *logs, str(program)) as run:
        pids = all_started(run)
        run.process.kill()
        run.process.wait()
    with launched("--status", *logs) as run:
        shown = run.succeed().splitlines()
    assert shown[1::2] == ["    started"] * 2
    found = [re.fullmatch(r"([01]): running \(process (\d+)\)", line) for line in shown[::2]]
    assert [line[1] for line in found] == ["0", "1"]
    assert sorted(int(line[2]) for line in found) == sorted(pids)
    with launched("-n", "1", *logs, str(program)) as run:
        assert run.finish() == 1
        assert re.search(r"--log_dir: process \d+ \(0\), whose log is .*, still runs", run.output)
    with launched("--stop", *logs) as run:
        assert run.finish() == 0, run.output
    assert [pid for pid in pids if state.start_mark(pid)] == []
    with launched("--status", *logs) as run:
        assert run.finish() == 1
        assert run.output.count("ended with unknown status") == 2


@pytest.mark.slow
def test_a_killed_worker_is_started_again_unless_another_launcher_stops_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time; print('started', os.getpid(), flush=True); time.sleep(900)"
    )
    logs = ["--log_dir", str(tmp_path / "logs")]
    with launched("-n", "1", "--ps=1", "--max_restarts=3", *logs, str(program)) as run:
        pid = int(run.wait_for(r"\[0\] started").split()[-1])
        os.kill(pid, signal.SIGKILL)
        run.wait_for(r"0 was killed and is started again in 1 s\.")
        run.wait_for(rf"\[0\] started (?!{pid}$)")
        with launched("--stop", *logs) as stop:
            assert stop.finish() == 0, stop.output
        run.finish()
    assert run.output.count("[0] started") == 2, run.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--stop"], "--status and --stop need --log_dir=DIR"),
        ([], "needs -n or --hosts, and not both"),
        (["-n", "2", "--hosts=a", "x.py"], "needs -n or --hosts, and not both"),
        (["-n", "2"], r"needs a program, as train.py or -m package.train"),
        (["-n", "0", "x.py"], "-n: '0'; allowed are whole numbers from 1 to 65536"),
        (["-n", str(1 << 64), "x.py"], "-n: '18446744073709551616'; allowed are whole numbers"),
        (["-n", "two", "x.py"], "-n: 'two'; allowed are whole numbers"),
        (["--hosts=a", '--ssh="open', "x.py"], "--ssh: '\"open': No closing quotation"),
        (["-n", "2", "--", "gone.py"], "no such program: gone.py"),
        (["-n", "2", "gone.py"], "no such program: gone.py"),
        (["--hosts=a,,b", "x.py"], "--hosts: has ''; allowed are names of hosts"),
        (
            ["--hosts=a", "--port=0", "x.py"],
            "--port: '0'; allowed are whole numbers from 1 to 64535",
        ),
        (["-n", "2", "--port=80", "x.py"], "--port needs --hosts"),
        (["-n", "2", "--certificates=certs", "x.py"], "--certificates needs --hosts"),
        (["-n", "2", "--network_interface=lo", "x.py"], "--network_interface needs --hosts"),
        (["-n", "2", "--ps=-1", "x.py"], "--ps: '-1'; allowed are whole numbers from 0 to 65536"),
        (["--log_dir=/tmp", "--status", "--stop"], "needs --status or --stop, and not both"),
        (["-n", "2", "--min_workers=2", "x.py"], "--min_workers needs --max_restarts"),
        (
            ["-n", "2", "--max_restarts=0", "--min_workers=3", "x.py"],
            "--min_workers is 3; allowed are 1 to 2, the number of workers",
        ),
        (["-n", "2", "--show=2", "x.py"], "--show is 2; allowed are 0 to 1, a worker"),
        (["-n", "2", "--log_dir=/proc/x", __file__], "--log_dir: cannot make /proc/x: "),
    ],
)
def test_wrong_arguments_end_in_one_line(arguments, why):
    with pytest.raises(SystemExit, match=rf"^launch: .*{why}.*; --help shows how$"):
        launch.main(arguments)


def test_more_processes_than_this_machine_has_ports_end_in_one_line(monkeypatch):
    monkeypatch.setattr(launch.Requests, "listen", lambda requests: None)  # signals stay pytest's
    with pytest.raises(SystemExit, match=r"^launch: 65537 free ports are needed; only \d+ were"):
        launch.main(["-n", "65536", __file__])


def test_the_processes_of_a_host_get_ports_of_their_own():
    def on_hosts(servers):
        words = ["--hosts=me@a,b,a", "--python=python", "--ssh=ssh -F file", f"--ps={servers}"]
        return launch._processes(launch._parse([*words, "x y.py"]), contextlib.ExitStack())

    processes = on_hosts(0)
    assert [process.label for process in processes] == ["0 me@a", "1 b", "2 a"]
    *words, host, line = processes[2].command
    assert (words[:3], host) == (["ssh", "-F", "file"], "a")
    assert "TERNGRAD_HOSTS=a:2222,b:2222,a:2223 TERNGRAD_RANK=2 TERNGRAD_CONTROL_PORT=3222" in line
    assert line.endswith("-m terngrad.launcher.remote_command python -u 'x y.py'")

    *workers, first, second = on_hosts(2)
    assert [process.label for process in (first, second)] == ["ps 0 me@a", "ps 1 b"]
    assert "TERNGRAD_PS_HOSTS=a:2224,b:2223 TERNGRAD_JOB=ps" in first.command[-1]
    assert second.command[-2] == "b"
    assert "TERNGRAD_RANK=1" in second.command[-1]
    assert "TERNGRAD_PS_HOSTS=a:2224,b:2223 TERNGRAD_JOB=worker" in workers[0].command[-1]
