"""The options of the programs that check a GPU, and the file with their figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Mapping
from typing import NoReturn


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
