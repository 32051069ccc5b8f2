"""What all tests need before TensorFlow computes anything."""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure() -> None:
    """Makes two logical CPU devices and the settings under which the numerics' laws hold."""
    # A shell ignores SIGINT for what it starts in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from inception import app

    with app.quiet_import():
        from inception import runtime
    runtime.configure(intra_threads=0, inter_threads=0, deterministic=True, log_placement=False)
    runtime.towers(2, on_cpu=True)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Returns the folder of a name, which the first of all workers that asks for it fills."""
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
