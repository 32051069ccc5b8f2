"""The options of the programs that check a GPU, where they ran, and the file with their figures."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np

from terngrad.gpu import nvrtc
from terngrad.ops.library import UnavailableError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Ends in one line."""
        sys.exit(f"{self.prog}: {message.removeprefix('argument ')}")


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Returns the parser of a program's options --json, --seed and --rounds."""
    found = _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--json", type=_new_file, default="", help="JSON file for the figures")
    add(
        "--seed", type=int, default=secrets.randbits(32), help="of all values; by default a new one"
    )
    add("--rounds", type=int, default=20, help="timings of each kind; 0 = only checks")
    return found


def _new_file(path: str) -> str:
    if not path or _is_special(path):
        return path
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path}: the folder {folder} is not writable")
    if os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path}: is a folder, must be a file")
    return path


def _is_special(path: str) -> bool:
    """Whether there is a device or a pipe, which a file must not replace."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def environment(gpu: str) -> dict[str, object]:
    """Returns date, commit, GPU, driver and versions.

    Args:
      gpu: its name.
    """
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    try:
        compiler = ".".join(map(str, nvrtc.load().version))
    except UnavailableError:  # the code was in the cache
        compiler = "none"
    return {
        "date": datetime.date.today().isoformat(),
        "commit": found.stdout.strip() or "unknown",
        "GPU": gpu,
        "driver": _driver(),
        "NVRTC": compiler,
        "Python": f"{platform.python_version()}, NumPy {np.__version__}",
    }


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    try:
        return path.read_text().splitlines()[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return "unknown"


def write_figures(program: str, path: str, content: Mapping[str, object]) -> None:
    """Writes a program's figures; replaces an existing file only when the new one is complete.

    Exits with a line if the file cannot be written.
    """
    target = os.path.realpath(path)  # that of a link
    temporary = f"{target}.{os.getpid()}.partial"
    try:
        with open(path if _is_special(path) else temporary, "w") as file:
            json.dump(content, file, indent=1)
        if not _is_special(path):
            os.replace(temporary, target)
    except OSError as error:
        sys.exit(f"{program}: --json: {path}: {error.strerror}")
    finally:
        with contextlib.suppress(OSError):
            os.remove(temporary)
