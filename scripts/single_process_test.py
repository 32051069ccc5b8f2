"""The scripts for one process of a training, and the example that runs several of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import wait_for_files

_WORKER = "run_single_worker_cifarnet.sh"
_SERVER = "run_single_ps_cifar10.sh"


@pytest.fixture
def start(tmp_path, working_copy) -> Callable[..., subprocess.Popen]:
    """Starts a script of a working copy; its home is the test's folder."""
    copy = working_copy(tmp_path / "my copy")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train-cifar10.tfrecord").touch()

    def run(script: str, *arguments: str, **settings: str) -> subprocess.Popen:
        own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERNGRAD_VENV": sys.prefix}
        return subprocess.Popen(
            ["bash", copy / "scripts" / script, *arguments],
            cwd=copy,
            env=own | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def test_a_worker_becomes_the_program_with_its_settings(start, tmp_path, noted):
    hosts = ("a:1,b:1", "c:2,[::1]:3")
    arguments = (*hosts, "worker", "1", "0,2", f"{tmp_path}/data", "try-1")
    process = start(_WORKER, *arguments, GRAD_BITS="32", WORKER_FLAGS="--a=1\n  --b=2\n")
    wait_for_files(tmp_path / "worker_1.json")
    process.terminate()
    assert process.wait() == 143
    note = noted(tmp_path, "worker_1")
    assert note["pid"] == process.pid
    assert note["environ"]["CUDA_VISIBLE_DEVICES"] == "0,2"
    expected = {
        "--dataset_name": "cifar10",
        "--job_name": "worker",
        "--task_id": "1",
        "--ps_hosts": hosts[0],
        "--worker_hosts": hosts[1],
        "--variable_update": "parameter_server",
        "--data_dir": f"{tmp_path}/data",
        "--train_dir": f"{tmp_path}/tmp/cifar10_training_data/try-1_worker_1",
        "--net": "cifar10_alexnet",
        "--batch_size": "64",
        "--grad_bits": "32",
        "--a": "1",
        "--b": "2",
    }
    assert {flag: note["flags"][flag] for flag in expected} == expected
    assert not [flag for flag in note["flags"] if flag.startswith("--tls")]


def test_a_server_becomes_the_program_on_the_cpu_with_its_certificates(start, tmp_path, noted):
    files = {"TLS_CA": "/c a.crt", "TLS_CERT": "/a.crt", "TLS_KEY": "/a.key", "TLS_DENY": "/d"}
    process = start(_SERVER, "a:1", "b:1", "ps", "0", "try", **files, PS_FLAGS="--x=y\n--z=1")
    wait_for_files(tmp_path / "ps_0.json")
    process.terminate()
    assert process.wait() == 143
    note = noted(tmp_path, "ps_0")
    assert note["environ"]["CUDA_VISIBLE_DEVICES"] == "-1"
    assert note["arguments"] == [
        *("--dataset_name", "cifar10"),
        *("--job_name", "ps", "--task_id", "0", "--ps_hosts", "a:1", "--worker_hosts", "b:1"),
        "--variable_update=parameter_server",
        *("--tls_ca", "/c a.crt", "--tls_cert", "/a.crt", "--tls_key", "/a.key"),
        *("--tls_deny", "/d"),
        *("--train_dir", f"{tmp_path}/tmp/cifar10_training_data/try_ps_0"),
        *("--x=y", "--z=1"),
    ]


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        (
            _WORKER,
            ["a:1", "b:1", "worker", "0"],
            "needs PS_HOSTS WORKER_HOSTS JOB_NAME TASK_ID DEVICE DATA_DIR EXPERIMENT_ID, "
            "got 4 arguments",
        ),
        (_WORKER, ["a:1", "b:1", "ps", "0", "0", "/", "x"], "JOB_NAME must be worker, got 'ps'"),
        (
            _WORKER,
            ["a:1", "b:1", "worker", "one", "0", "/", "x"],
            "TASK_ID must be an integer >= 0, got 'one'",
        ),
        (_WORKER, ["a:1", "b:1", "worker", "0", "0", "/none", "x"], "no such folder: /none"),
        (_SERVER, ["a:1", "b:1", "worker", "0", "x"], "JOB_NAME must be ps, got 'worker'"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(start, script, arguments, message):
    process = start(script, *arguments)
    output = process.communicate(timeout=HANG_SECS)
    assert (process.returncode, *output) == (1, "", f"{script}: {message}\n")


@pytest.fixture
def toy(start, tmp_path) -> Callable[..., subprocess.Popen]:
    """Starts the example on the test's data."""
    return lambda **settings: start(
        "run_dist_cifar10.sh", **{"DATA_DIR": f"{tmp_path}/data"} | settings
    )


@pytest.mark.slow
def test_the_toy_ends_the_server_when_both_workers_are_done(start, tmp_path, noted):
    default = tmp_path / "dataset/cifar10-data"
    default.parent.mkdir()
    default.symlink_to(tmp_path / "data")
    settings = {"WORKER_FLAGS": "--worker_0=finishes --worker_1=finishes", "GRAD_BITS": "16"}
    process = start("run_dist_cifar10.sh", **settings)
    output, errors = process.communicate(timeout=HANG_SECS)
    assert process.returncode == 0, errors
    for name in ("ps 0", "worker 0", "worker 1"):
        assert f"[{name}] {name.replace(' ', '_')}: step 10\n" in output
    flags = noted(tmp_path, "worker_1")["flags"]
    assert (flags["--grad_bits"], flags["--max_steps"]) == ("16", "1000")
    assert flags["--ps_hosts"] == "127.0.0.1:2222"
    assert flags["--data_dir"] == str(default)
    ended = [noted(tmp_path, name)["ended_secs"] for name in ("ps_0", "worker_0", "worker_1")]
    assert ended[0] == max(ended)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_all_processes_of_the_toy_save_and_end(toy, tmp_path, number, status, noted):
    process = toy()
    wait_for_files(*(tmp_path / f"{name}.json" for name in ("ps_0", "worker_0", "worker_1")))
    if number == signal.SIGINT:  # a terminal sends it to all processes
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, errors = process.communicate(timeout=HANG_SECS)
    assert process.returncode == status, errors
    for name in ("ps 0", "worker 0", "worker 1"):
        assert f"[{name}] saving\n" in output
        assert noted(tmp_path, name.replace(" ", "_"))["ended_secs"]


@pytest.mark.slow
def test_a_worker_that_fails_ends_the_toy_with_its_status(toy, tmp_path, noted):
    process = toy(WORKER_FLAGS="--worker_1=fails")
    output, _ = process.communicate(timeout=HANG_SECS)
    assert process.returncode == 1
    assert "[worker 1] worker_1: --net is 'x'; allowed are others\n" in output


def test_the_toy_names_missing_records_with_the_command_that_makes_them(toy, tmp_path):
    process = toy(HOME=str(tmp_path), DATA_DIR="~/data,~/none")
    _, errors = process.communicate(timeout=HANG_SECS)
    assert process.returncode == 1
    assert errors == (
        f"run_dist_cifar10.sh: no records train-* in {tmp_path}/none; make them with: "
        f"{sys.prefix}/bin/python -m slim.download_and_convert_data --dataset_name cifar10 "
        f"--dataset_dir '{tmp_path}/none'\n"
    )
