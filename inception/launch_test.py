"""How the launcher ends, with small programs in place of the trainings."""

import contextlib
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from inception.launch import _parse, _processes, main
from terngrad.launcher.process import Restarts
from terngrad.launcher.state import StateFile
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started, wait_for_files, wait_until

PRELUDE = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(__file__).parent
index = int(sys.argv[-1].partition("=")[2])
def touch(name):
    (folder / f"{name}_{index}").touch()
def save(*_):
    touch("saved")
    sys.exit(143)
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""
WAITING = "signal.signal(signal.SIGTERM, save); touch('ready'); time.sleep(900)"
# Runs the launcher with shorter pauses.
IMPATIENT = """
import sys
from inception import launch
from terngrad.launcher import process
process._FIRST_PAUSE_SECS = 0.0625
sys.exit(launch.main(sys.argv[1:]))
"""
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
NOHUP = "import os, sys; os.execvp('nohup', ['nohup', sys.executable, '-m', *sys.argv[1:]])"
PAUSES = (0.0625, 0.125, 0.25, 0.5)


def saved(folder):
    return sorted(path.name for path in folder.glob("saved_*"))


@pytest.mark.parametrize("named", ["0,1", "3"])
def test_workers_share_out_the_gpus_and_servers_use_none(monkeypatch, named):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    with contextlib.ExitStack() as reservations:
        options = _parse(["--ps=1", "2", "inception.mnist_distributed_train"])
        processes = _processes(options, None, reservations)
    own = [each.environment for each in processes if not each.is_ps]
    gpus = named.split(",")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in own] == [gpus[0], gpus[-1]]
    assert all(("TF_FORCE_GPU_ALLOW_GROWTH" in each) == (len(gpus) == 1) for each in own)
    (server,) = (each.environment for each in processes if each.is_ps)
    assert server == {"CUDA_VISIBLE_DEVICES": "-1"}


def workers_of(folder):
    """Ids of the processes that run the program of a folder."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline") as file:
            words = file.read().split("\0")
            if str(folder) in words and words[-2].startswith("--task_id="):
                found.append(int(entry))
    return found


@pytest.fixture
def command(tmp_path):
    """Writes a program and returns the command of its launcher; no worker outlives the test."""

    def write(program, *options, workers=2, start=("-m", "inception.launch")):
        (tmp_path / "stand_in.py").write_text(PRELUDE + textwrap.dedent(program))
        run = [sys.executable, *start, *options, str(workers), "stand_in", str(tmp_path)]
        return ["env", "--default-signal=HUP", f"PYTHONPATH={tmp_path}:{os.getcwd()}", *run]

    yield write
    left = workers_of(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def launch(command):
    """Starts a launcher."""
    with contextlib.ExitStack() as stack:
        yield lambda *program, **options: stack.enter_context(Started(command(*program, **options)))


def test_an_output_whose_reader_goes_lets_all_workers_save(command, tmp_path):
    program = "signal.signal(signal.SIGTERM, save)\nwhile True: print('x' * 999); time.sleep(0.001)"
    with subprocess.Popen(command(program), stdout=subprocess.PIPE, text=True) as process:
        found = set()
        while len(found) < 2:
            found.add(process.stdout.readline()[:3])
        process.stdout.close()
        assert process.wait(HANG_SECS) == 128 + signal.SIGPIPE
    assert saved(tmp_path) == ["saved_0", "saved_1"]


def test_a_full_disk_costs_the_lines_and_not_the_training(command):
    program = command("print('x' * 99_999, flush=True); print('last')")
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "Lines cannot be printed: No space left on device; the process goes on.\n"


def test_without_an_output_the_workers_run(command):
    closed = ["bash", "-c", '"$@" >&-', "bash", *command("touch('done')")]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "caf\ufffd"), ("ascii", "caf?")])
def test_a_byte_that_is_no_text_is_replaced(launch, monkeypatch, encoding, shown):
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    run = launch("os.write(1, b'caf\\xe9\\n' + b'x' * 99_999 + b'\\nlast\\n')", workers=1)
    run.succeed()
    assert run.lines == [f"[0] {line}" for line in (shown, "x" * 99_999, "last")]


@pytest.mark.parametrize(
    ("name", "nth"), [("subprocess.Popen", 1), ("subprocess.Popen", 3), ("threading.Thread", 3)]
)
def test_a_signal_while_workers_are_started_leaves_none(launch, name, nth):
    run = launch(WAITING, workers=4, start=("-c", SIGNALLED, name, str(nth)))
    assert (run.finish(), run.output) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize(
    ("name", "nth"),
    [("rich.console.Console.print", 1), ("inception.cluster.members.worker_flags", 2)],
)
def test_a_signal_between_attempts_ends_without_another(launch, name, nth):
    run = launch("sys.exit(3)", "--max_restarts=9", start=("-c", SIGNALLED, name, str(nth)))
    assert (run.finish(), run.output.count("Restart"), len(run.lines)) == (143, 1, 1)


def test_a_stop_between_attempts_ends_without_another(launch, tmp_path):
    logs = tmp_path / "logs"
    with launch("sys.exit(3)", "--max_restarts=9", "--log_dir", str(logs)) as run:
        run.wait_for("Restart 1")
        for file in logs.glob("*.json"):
            StateFile(str(file)).ask_to_stop()
        assert run.finish() > 0
    assert run.output.count("Restart") == 1, run.output


def test_with_a_folder_for_logs_each_process_has_a_log_and_a_state_file(launch, tmp_path):
    logs = tmp_path / "my logs"
    run = launch("print('line', index); sys.exit(index)", "--log_dir", str(logs), "--ps=1")
    assert run.finish() == 1
    names = ("worker_0", "worker_1", "ps_0")
    assert {path.name for path in logs.iterdir()} == {
        f"{n}.{end}" for n in names for end in ("log", "json")
    }
    assert (logs / "worker_1.log").read_text() == "line 1\n"
    record = StateFile(str(logs / "worker_1.json")).read()
    assert (record.label, record.status) == ("1", 1)


def test_a_failed_training_is_started_again(launch):
    program = """
        first = not (folder / f"failed_{index}").exists()
        touch("failed")
        sys.exit(3 if first else 0)
    """
    output = launch(program, "--max_restarts", "2").succeed()
    assert output == "Restart 1 of 2 in 1 s, from the last checkpoint if there is one."


@pytest.mark.slow
def test_a_failing_training_restarts_after_growing_pauses_a_limited_number_of_times(launch):
    began = time.monotonic()
    run = launch("sys.exit(3)", "--max_restarts=9", start=("-c", IMPATIENT))
    assert run.finish() == 3 and time.monotonic() - began > sum(PAUSES)
    assert re.findall(r"Restart (.*),", run.output) == [
        f"{i} of 9 in {secs} s" for i, secs in enumerate(PAUSES, 1)
    ]
    assert "The training is not started again after 5 runs of less than 30 s." in run.lines


def test_pauses_are_counted_for_each_process_and_end_with_a_long_run():
    now = [0.0]
    restarts = Restarts(7, clock=lambda: now[0])

    def run(name, secs):
        restarts.note_start(name)
        now[0] += secs
        return restarts.next_start(name)[0]

    assert [run("a", 29), run("a", 29), run("b", 1), run("a", 30), run("a", 1)] == [1, 2, 1, 1, 1]
    assert [run("a", 100), run("b", 100), run("b", 100)] == [1, 1, None]
    assert restarts.next_start("b") == (None, "")


NETWORK = """
    import subprocess
    hosts = [word for word in sys.argv if word.startswith("--worker_hosts=")]
    shown = subprocess.check_output(["tc", "qdisc", "show", "dev", "eth0"], text=True)
    print(*hosts, "limit:", shown.split()[1], flush=True)
"""


@pytest.mark.parametrize(("rate", "limit"), [("50mbit", "tbf"), ("unshaped", "noqueue")])
def test_with_a_bandwidth_each_process_has_a_host_of_its_own(launch, has_networks, rate, limit):
    run = launch(NETWORK, f"--bandwidth={rate}", "--ps=1")
    run.succeed()
    hosts = "--worker_hosts=10.77.0.1:2222,10.77.0.2:2222"
    assert sorted(run.lines) == [f"[{own}] {hosts} limit: {limit}" for own in ("0", "1", "ps 0")]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert f"launch{run.process.pid}" not in left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_all_workers_save(launch, tmp_path, number):
    run = launch(WAITING, "--max_restarts=1")
    wait_for_files(tmp_path / "ready_0", tmp_path / "ready_1")
    run.process.send_signal(number)
    assert (run.finish(), run.output) == (128 + number, "")
    assert saved(tmp_path) == ["saved_0", "saved_1"]


def test_nohup_keeps_a_training_alive(launch, tmp_path):
    run = launch(WAITING, start=("-c", NOHUP, "inception.launch"))
    wait_for_files(tmp_path / "ready_0", tmp_path / "ready_1")
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 128 + signal.SIGTERM


@pytest.mark.parametrize("printed", ["", "x" * 2999])
def test_a_second_ctrl_c_kills_even_if_nobody_reads_the_output(command, tmp_path, printed):
    program = f"""
        signal.signal(signal.SIGTERM, lambda *_: touch("saved"))
        touch("ready")
        while True:
            print({printed!r}, end="\\n" if {bool(printed)} else "")
            time.sleep(0.01)
    """
    with subprocess.Popen(command(program), stdout=subprocess.PIPE) as process:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        wait_for_files(tmp_path / "ready_0", tmp_path / "ready_1")
        if printed:
            select.select([process.stdout], [], [], HANG_SECS)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: saved(tmp_path) == ["saved_0", "saved_1"], "both saved")
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_SECS) == 128 + signal.SIGINT


def test_a_signal_after_a_failure_keeps_its_status_and_starts_no_other_attempt(launch, tmp_path):
    run = launch(
        """
        if index == 1:
            wait_for("ready_0")
            (folder / "pid").write_text(str(os.getpid()))
            touch("fails")
            sys.exit(3)
        signal.signal(signal.SIGTERM, save)
        touch("ready")
        time.sleep(900)
        """,
        "--max_restarts=1",
    )
    wait_for_files(tmp_path / "fails_1")
    pid = (tmp_path / "pid").read_text()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the launcher has noticed")
    run.process.send_signal(signal.SIGTERM)
    assert (run.finish(), run.output) == (3, "")
    assert saved(tmp_path) == ["saved_0"]


def test_workers_end_by_themselves_after_a_killed_launcher(launch, tmp_path):
    run = launch("touch('ready')\nwhile True: print('x'); time.sleep(0.01)")
    wait_for_files(tmp_path / "ready_0", tmp_path / "ready_1")
    assert len(workers_of(tmp_path)) == 2
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not workers_of(tmp_path), "the workers end")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2", "--max_restarts=1", "program"], "PROGRAM is '--max_restarts=1'; launch's own flags"),
        (["--max_restarts", "x", "2", "program"], "--max_restarts: 'x'; allowed are whole"),
        (
            ["2", "train.py"],
            "PROGRAM is 'train.py'; allowed is the name of a module; for a script of",
        ),
        (
            ["2", "inception.mnist_train", "--net=mlp"],
            "PROGRAM is inception.mnist_train, which trains alone; take inception.mnist_distrib",
        ),
        (
            ["2", "inception.train"],
            "PROGRAM is inception.train, which trains alone; take inception.d",
        ),
        (["2", "program", "--task_id=0"], "--task_id: this launcher sets it for each process"),
        (["2", "program", "-worker_hosts", "a:1"], "-worker_hosts: this launcher sets it"),
        (["two", "program"], "WORKERS: 'two'; allowed are whole numbers"),
        (["--max_restarts=-1", "1", "program"], "--max_restarts: '-1'; allowed are whole"),
        (["--log_dir=/proc/x", "1", "program"], "--log_dir: cannot make /proc/x: "),
        (["--bandwidth=9", "2", "program"], "--bandwidth: '9'; it must be unshaped, or a rate"),
        (["0", "program"], "WORKERS: '0'; allowed are whole numbers"),
        (["2"], "needs the number of workers and a program"),
        ([], "needs the number of workers and a program"),
    ],
)
def test_law_10_wrong_arguments_are_named(arguments, message):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert str(end.value).startswith(f"launch: {message}")


@pytest.mark.parametrize(
    ("flags", "tolerates"),
    [
        (["--elastic"], True),
        (["--net", "mlp", "--elastic=t"], True),
        (["--elastic", "False"], False),
        (["--elastic", "--noelastic"], False),
        ([], False),
    ],
)
def test_elastic_is_read_as_the_program_reads_it(monkeypatch, flags, tolerates):
    found = []

    def end(*_, tolerates_failures, **__):
        found.append(tolerates_failures)
        raise OSError

    monkeypatch.setattr("inception.launch.Run", end)
    monkeypatch.setattr("inception.launch.Requests.listen", lambda self: None)
    with pytest.raises(SystemExit):
        main(["2", "a.program", *flags])
    assert found == [tolerates]


def test_the_help_is_shown(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "--max_restarts=N" in capsys.readouterr().out
