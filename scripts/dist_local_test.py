"""run_dist.sh, status_dist.sh and stop_dist.sh on this machine only, and with bad settings."""

import concurrent.futures
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from terngrad.launcher.processes import LOCK
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started, wait_for_files, wait_until


@pytest.fixture
def command(tmp_path, working_copy) -> Callable[..., tuple[list, dict[str, str]]]:
    """Returns the command and the environment of a script of a working copy.

    Its home is the test's folder, and there is no ssh.
    """
    copy = working_copy(tmp_path / "my copy")
    (tmp_path / "dataset/cifar10-data").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\necho There is no ssh. >&2\nexit 255\n")
    (tmp_path / "bin/ssh").chmod(0o755)

    own = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERNGRAD_VENV": sys.prefix,
    }
    return lambda script, *arguments, **settings: (
        ["bash", str(copy / "scripts" / script), *arguments],
        own | {key: str(value) for key, value in settings.items()},
    )


@pytest.fixture
def run(command) -> Callable[..., subprocess.CompletedProcess]:
    """Runs a script to its end."""

    def call(*words: str, **settings) -> subprocess.CompletedProcess:
        own, environment = command(*words, **settings)
        return subprocess.run(
            own,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECS,
            check=False,
        )

    return call


_NAMES = ("ps_0", "worker_0", "worker_1")


@pytest.mark.slow
def test_without_settings_a_server_and_two_workers_run_on_this_machine(run, tmp_path, noted):
    result = run("run_dist.sh")
    assert result.returncode == 0, result.stderr
    wait_for_files(*(tmp_path / f"{name}.json" for name in _NAMES))
    for name in _NAMES:
        flags = noted(tmp_path, name)["flags"]
        assert flags["--worker_hosts"] == "127.0.0.1:2224,127.0.0.1:2226"
        assert not {"--tls_ca", "--allow_insecure_network"} & flags.keys()
    secrets = {noted(tmp_path, name)["environ"]["TERNGRAD_SECRET"] for name in _NAMES}
    assert [len(secret) for secret in secrets] == [32]
    again = run("run_dist.sh")
    pid = noted(tmp_path, "ps_0")["pid"]
    running = f"ps 0 (127.0.0.1:2222) already runs (process {pid}); stop it with stop_dist.sh"
    assert again.stderr.startswith("run_dist.sh: nothing was started: ") and running in again.stderr
    assert flags["--data_dir"] == f"{tmp_path}/dataset/cifar10-data"
    assert run("status_dist.sh").stdout.count("running (process") == 3
    stopped = run("stop_dist.sh")
    assert (stopped.returncode, stopped.stdout.count("ended by SIGTERM")) == (0, 3)


def _waiting(lock: pathlib.Path) -> int:
    """How many starts wait for a lock."""
    locks = pathlib.Path("/proc/locks").read_text()
    return len(re.findall(rf"-> POSIX .*:{lock.stat().st_ino} ", locks))


@pytest.mark.slow
def test_of_two_runs_at_the_same_time_one_starts_the_processes(run, tmp_path):
    lock = tmp_path / "tmp/terngrad_dist" / LOCK
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as file, concurrent.futures.ThreadPoolExecutor() as pool:
        fcntl.lockf(file, fcntl.LOCK_EX)
        runs = [pool.submit(run, "run_dist.sh") for _ in range(2)]
        wait_until(lambda: _waiting(lock) == 2, "both runs' checks")
        fcntl.lockf(file, fcntl.LOCK_UN)
        one, other = sorted((each.result() for each in runs), key=lambda done: done.returncode)
    assert (one.returncode, other.returncode, other.stdout) == (0, 1, ""), one.stderr
    assert other.stderr.startswith("run_dist.sh: nothing was started: 127.0.0.1: ps 0 (127.0.0.1:")
    wait_for_files(*(tmp_path / f"{name}.json" for name in _NAMES))
    stopped = run("stop_dist.sh")
    assert (stopped.returncode, stopped.stdout.count("ended by SIGTERM")) == (0, 3)
    assert [_runs(tmp_path, name) for name in _NAMES] == [1, 1, 1]


@pytest.mark.slow
def test_a_start_on_a_host_that_hangs_ends_when_it_is_asked_twice(command, run, tmp_path):
    lock = tmp_path / "tmp/terngrad_dist" / LOCK
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as file, Started(*command("run_dist.sh")) as start:
        fcntl.lockf(file, fcntl.LOCK_EX)
        wait_until(lambda: _waiting(lock) == 1, "the start")
        for number, line in (
            (signal.SIGTERM, "interrupted; waits for 127.0.0.1; a second Ctrl-C ends this at once"),
            (signal.SIGINT, "processes may still run on 127.0.0.1; stop_dist.sh stops them"),
        ):
            start.process.send_signal(number)
            start.wait_for(f"^run_dist.sh: {line}$")
        assert start.finish() == 1
    wait_for_files(*(tmp_path / f"{name}.json" for name in _NAMES))
    assert run("stop_dist.sh").returncode == 0


@pytest.mark.slow
def test_a_file_of_settings_may_hold_arrays_and_the_environment_may_hold_lists(
    run, tmp_path, noted
):
    folders = [tmp_path / "a, b", tmp_path / "c"]
    for folder in folders:
        folder.mkdir()
    config = tmp_path / "my cluster.sh"
    config.write_text("DATA_DIR=('~/a, b' ~/c)\nWORKER_DEVICES=('0,1' 2)\nGRAD_BITS=16\nTLS=True\n")
    settings = {"DIST_CONFIG": config, "CERTS_DIR": "~/my certs"}
    result = run("run_dist.sh", PS_HOSTS="localhost:2222,localhost:2223", **settings)
    assert result.returncode == 0, result.stderr
    wait_for_files(*(tmp_path / f"{name}.json" for name in ("ps_1", "worker_0", "worker_1")))
    for task, devices in enumerate(("0,1", "2")):
        note = noted(tmp_path, f"worker_{task}")
        assert note["environ"]["CUDA_VISIBLE_DEVICES"] == devices
        assert note["flags"]["--data_dir"] == str(folders[task])
        assert note["flags"]["--grad_bits"] == "16"
        assert note["flags"]["--tls_cert"] == f"{tmp_path}/.terngrad/certs/127.0.0.1.crt"
        assert "TERNGRAD_SECRET" not in note["environ"]
    assert noted(tmp_path, "ps_1")["flags"]["--tls_cert"].endswith("/localhost.crt")
    assert (tmp_path / "my certs/ca.key").exists()


@pytest.mark.slow
def test_what_fails_while_it_loads_is_reported_and_a_second_run_parts_the_log(run, tmp_path):
    result = run("run_dist.sh", EXPERIMENT_ID="a", WORKER_FLAGS="--worker_1=loads")
    assert (result.returncode, "Experiment a runs" in result.stdout) == (1, False)
    failed = "worker 1 (127.0.0.1:2226) failed with status 1: worker_1: cannot load"
    assert failed in result.stderr and "all processes were stopped again" in result.stderr
    assert run("run_dist.sh", EXPERIMENT_ID="a").returncode == 0
    shown = run("status_dist.sh", "--lines=1000").stdout
    assert shown.count("    Started at 2") == 6
    assert run("stop_dist.sh").returncode == 0


@pytest.mark.slow
def test_a_process_that_nobody_watches_any_more_is_still_shown_and_ended(run, tmp_path, noted):
    assert run("run_dist.sh").returncode == 0
    names = ("ps_0", "worker_0", "worker_1")
    wait_for_files(*(tmp_path / f"{name}.json" for name in names))
    pids = [noted(tmp_path, name)["pid"] for name in names]
    for pid in pids:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
    os.kill(pids[1], signal.SIGKILL)
    shown = run("status_dist.sh").stdout
    assert shown.count("running (process") == 2
    assert "worker 0 (127.0.0.1:2224): ended with unknown status: the host or" in shown
    assert run("stop_dist.sh").returncode == 0
    for pid in pids:
        stat = pathlib.Path(f"/proc/{pid}/stat")
        assert not stat.exists() or ") Z " in stat.read_text()


def _runs(folder: pathlib.Path, name: str) -> int:
    path = folder / f"{name}.runs"
    return len(path.read_text().split()) if path.exists() else 0


@pytest.mark.slow
def test_a_killed_process_restarts_until_it_runs_and_then_ends_as_asked(run, tmp_path, noted):
    settings = {"WORKER_FLAGS": "--worker_0=killed_twice"}
    assert run("run_dist.sh", "--max_restarts=9", **settings).returncode == 0
    wait_until(lambda: _runs(tmp_path, "worker_0") == 3, "two restarts")
    shown = run("status_dist.sh", "--lines=20").stdout
    assert shown.count("running (process") == 3
    again, other = (noted(tmp_path, name) for name in ("worker_0", "worker_1"))
    assert f"running (process {again['pid']})" in shown
    assert again["environ"]["TERNGRAD_SECRET"] == other["environ"]["TERNGRAD_SECRET"]
    for secs in (1, 2):
        assert f"Was killed by SIGKILL and is started again in {secs} s." in shown
    stopped = run("stop_dist.sh")
    assert (stopped.returncode, stopped.stdout.count("ended by SIGTERM")) == (0, 3)


_ADDRESS = "must be HOST:PORT, with a port from 1 to 65535"


_BAD_SETTINGS = [
    ({"PS_HOSTS": "a"}, f"PS_HOSTS: {_ADDRESS}, got 'a'"),
    ({"PS_HOSTS": "-oProxyCommand=x:1"}, f"PS_HOSTS: {_ADDRESS}, got '-oProxyCommand=x:1'"),
    (
        {"PS_HOSTS": "a:1", "WORKER_HOSTS": "b:1,a:1"},
        "a:1 appears twice in PS_HOSTS and WORKER_HOSTS; each process needs its own",
    ),
    (
        {"WORKER_DEVICES": "0,1,2"},
        "WORKER_DEVICES has 3 entries; allowed are 1 (for all workers) or 2 (one for each)",
    ),
    ({"TLS": "maybe"}, "TLS must be auto, True or False, got 'maybe'"),
    ({"MAX_RESTARTS": "-1"}, "MAX_RESTARTS must be an integer >= 0, got '-1'"),
    ({"STOP_SECS": "soon"}, "STOP_SECS must be an integer >= 1, got 'soon'"),
    (
        {"EXPERIMENT_ID": "a/b"},
        "EXPERIMENT_ID must start with a letter or digit, then also '.', '_', '-', got 'a/b'",
    ),
    ({"DIST_CONFIG": "/none"}, "no such file: DIST_CONFIG=/none"),
]


@pytest.mark.parametrize(
    ("script", "settings", "message"),
    [
        *(("run_dist.sh", *bad) for bad in _BAD_SETTINGS),
        ("status_dist.sh", *_BAD_SETTINGS[0]),  # all three read them in dist.sh
        ("stop_dist.sh", *_BAD_SETTINGS[0]),
    ],
)
def test_a_bad_setting_is_named_in_one_line(run, script, settings, message):
    result = run(script, **settings)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"{script}: {message}\n"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"PS_HOSTS": "127.0.0.1:1", "WORKER_HOSTS": "b:1"},
            "PS_HOSTS and WORKER_HOSTS mix this machine's loopback with other hosts, "
            "which cannot reach it",
        ),
        (
            {"TLS_DENY": "~/denied.txt"},
            "TLS_DENY needs TLS_CA, TLS_CERT and TLS_KEY; without them make_certs.sh --revoke "
            "lists the numbers in CERTS_DIR",
        ),
        ({"PS_SCRIPT": "own.sh"}, "no such script: {home}/my copy/own.sh"),
        (
            {"PS_HOSTS": "a:1", "WORKER_HOSTS": "b:1,b:2"},
            "nothing was started: a cannot be reached (There is no ssh.); "
            "b cannot be reached (There is no ssh.)",
        ),
    ],
)
def test_what_keeps_a_training_from_its_start_is_named_in_one_line(
    run, tmp_path, settings, message
):
    result = run("run_dist.sh", **settings)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"run_dist.sh: {message.format(home=tmp_path)}\n"
    assert not (tmp_path / "tmp").exists()


@pytest.mark.parametrize(
    ("script", "argument", "message"),
    [
        ("run_dist.sh", "x", "allowed is --max_restarts=N; for the rest edit config_dist.sh or"),
        ("run_dist.sh", "--max_restarts=x", "--max_restarts must be an integer >= 0, got 'x'"),
        ("stop_dist.sh", "x", "takes no arguments; edit config_dist.sh or set variables in the"),
        ("status_dist.sh", "x", "allowed are --lines=N and --fetch=DIR, got 'x'"),
        ("status_dist.sh", "--fetch=/proc/none", "cannot make the folder /proc/none"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(run, script, argument, message):
    result = run(script, argument)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{script}: {message}")


def test_before_anything_was_started_status_and_stop_say_so(run):
    stop = run("stop_dist.sh")
    assert stop.returncode == 1
    assert stop.stderr.startswith("stop_dist.sh: 127.0.0.1: worker 0 (127.0.0.1:2224): not started")
    result = run("status_dist.sh")
    assert result.returncode == 1
    assert sorted(stop.stdout.splitlines()) == sorted(result.stdout.splitlines())
    assert result.stdout == (
        "ps 0 (127.0.0.1:2222): not started\n"
        "worker 0 (127.0.0.1:2224): not started\n"
        "worker 1 (127.0.0.1:2226): not started\n"
    )
