"""Working copies of the scripts with a fake training program."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

_SCRIPTS = pathlib.Path(__file__).parent
# Writes its arguments to a file in its home and waits for SIGTERM; --worker_0=MODE changes that.
_PROGRAM = """
import json, os, pathlib, signal, sys, time

words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
flags = {key: value for key, value in zip(words, words[1:] + [""]) if key.startswith("--")}
name = flags["--job_name"] + "_" + flags["--task_id"]
mode = flags.get("--" + name)
note = {"arguments": sys.argv[1:], "flags": flags, "environ": dict(os.environ), "pid": os.getpid()}


def write(ended_secs=None):
    note["ended_secs"] = ended_secs
    unfinished = pathlib.Path.home() / f".{name}.json"
    unfinished.write_text(json.dumps(note))
    unfinished.rename(pathlib.Path.home() / f"{name}.json")


def end(number, frame):
    print("saving", flush=True)
    time.sleep(0.5)
    write(time.time())
    sys.exit(143)


if mode == "loads":
    time.sleep(4)
    sys.exit(f"{name}: cannot load")
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else end)
print(f"{name}: step 10\\r{name}: step 20", flush=True)
if mode == "fails":
    sys.exit(f"{name}: --net is 'x'; allowed are others")
write()
runs = pathlib.Path.home() / f"{name}.runs"
with open(runs, "a") as file:
    print(os.getpid(), file=file)
count = len(runs.read_text().split())
if mode == "killed" or mode == "killed_twice" and count < 3:
    time.sleep(4 if count == 1 else 0)  # run_dist.sh reports what fails at once
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(10 if mode == "finishes" else 1000):
    time.sleep(0.1)
write(time.time())
"""


@pytest.fixture
def working_copy() -> Iterator[Callable[[pathlib.Path], pathlib.Path]]:
    """Makes a working copy at a path; at the end kills the processes left in any copy."""
    made = []

    def make(path: pathlib.Path) -> pathlib.Path:
        (path / "scripts").mkdir(parents=True)
        for script in _SCRIPTS.glob("*.sh"):
            shutil.copy(script, path / "scripts")
        (path / "inception").mkdir()
        (path / "inception/distributed_train.py").write_text(_PROGRAM)
        for used in ("terngrad", "inception/__init__.py", "inception/launching"):
            (path / used).symlink_to(_SCRIPTS.parent / used)
        made.append(path)
        return path

    yield make
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cwd").readlink() in made:
                os.kill(int(entry.name), signal.SIGKILL)


@pytest.fixture
def noted() -> Callable[[pathlib.Path, str], dict]:
    """Reads the file that the fake program wrote in a home for one process."""
    return lambda home, name: json.loads((home / f"{name}.json").read_text())
