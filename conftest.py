"""Settings and fixtures of all tests, made before TensorFlow computes anything."""

import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from inception import app

with app.quiet_import():  # before the conftests of the folders, which need TensorFlow
    from terngrad.testing import selection
    from terngrad.training import runtime

pytest_addoption = selection.add_option
pytest_sessionfinish = selection.fail_on_skips


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets each worker of pytest-xdist begin with slow tests."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        selection.slow_first(items, workers)


def pytest_configure() -> None:
    """Makes two logical CPU devices and the settings under which the numerics' laws hold."""
    for profile in ("default", "ci"):  # no test depends on how fast the machine is
        known = settings.get_profile(profile)
        settings.register_profile(
            profile, known, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
    # Background jobs of a shell ignore SIGINT, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runtime.configure()
    runtime.towers(2, on_cpu=True)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Returns the folder of a name; the first pytest worker that asks for it fills it."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, fill: Callable[[Path], None]) -> Path:
        path = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                unfinished = shared / f"{name}.{os.getpid()}"
                unfinished.mkdir()
                fill(unfinished)
                unfinished.rename(path)
        return path

    return folder


@pytest.fixture(scope="session")
def horovod_command() -> Callable[[str, int], list[str]]:
    """Returns a launcher's command for several Pythons that Horovod connects; skips without it."""
    horovodrun, mpirun = (
        str(Path(sys.executable).with_name(name)) for name in ("horovodrun", "mpirun")
    )
    launchers = {"horovodrun": [horovodrun, "--gloo"], "mpirun": [mpirun]}

    def command(launcher: str, count: int) -> list[str]:
        if importlib.util.find_spec("horovod") is None:
            pytest.skip("Horovod is not installed: bash scripts/install_horovod.sh")
        if launcher == "mpirun":
            built = subprocess.run([horovodrun, "--check-build"], capture_output=True, text=True)
            if "[X] MPI" not in built.stdout:
                pytest.skip("Horovod was built without MPI")
        return [*launchers[launcher], "-np", str(count), sys.executable, "-u"]

    return command


@pytest.fixture(scope="session")
def has_networks() -> None:
    """Skips tests that need several hosts if this machine cannot simulate them."""
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("ip or tc (iproute2) is not installed")
    trial = f"trial{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", trial], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("network namespaces need root")
