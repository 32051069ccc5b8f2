"""The options of the programs that check a GPU."""

from __future__ import annotations

import argparse
import secrets


def parser(program: str, description: str) -> argparse.ArgumentParser:
    """Returns the parser of a program's options --json, --seed and --rounds."""
    found = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--json", default="", help="JSON file for the figures")
    add(
        "--seed", type=int, default=secrets.randbits(32), help="of all values; by default a new one"
    )
    add("--rounds", type=int, default=20, help="timings of each kind; 0 = only checks")
    return found
