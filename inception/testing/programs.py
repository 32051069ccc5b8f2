"""Runs a program within the test's process, which has loaded TensorFlow already."""

import runpy
import sys
from unittest import mock


def run_program(module: str, *arguments: object) -> None:
    """Runs a program with arguments, as `python -m` does; SystemExit has the line of an error."""
    with mock.patch.object(sys, "argv", [module.rpartition(".")[2], *map(str, arguments)]):
        runpy.run_module(module, run_name="__main__")
