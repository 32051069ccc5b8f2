"""Every program has a command of its own."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inception import console
from terngrad.testing.limits import HANG_SECS

_REPO = Path(__file__).parents[1]
_MAIN = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def test_every_program_has_one_command():
    folders = ("inception", "inception/data", "slim")
    files = [file for folder in folders for file in (_REPO / folder).glob("*.py")]
    programs = {
        ".".join(file.relative_to(_REPO).with_suffix("").parts)
        for file in files
        if _MAIN.search(file.read_text())
    }
    programs.add("terngrad.launch")
    assert programs == set(console.MODULES)
    assert len({console.command_of(module) for module in programs}) == len(programs)


# Runs programs in one process: for each its output, and the libraries that are loaded by then.
_RUN_ALL = """
import contextlib, io, json, runpy, sys
slow = {"tensorflow", "keras", "matplotlib", "optuna", "pyspark"}
for module in sys.argv[2:]:
    shown, status = io.StringIO(), None
    sys.argv[:] = [module, sys.argv[1]]
    with contextlib.redirect_stdout(shown):
        try:
            runpy.run_module(module, {}, "__main__")
        except SystemExit as end:
            status = end.code
    print(json.dumps([module, shown.getvalue(), status, sorted(slow & sys.modules.keys())]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--help", "--no_such_flag"])
def test_no_program_loads_a_slow_library_before_it_reads_its_flags(flag):
    command = [sys.executable, "-c", _RUN_ALL, flag, *console.MODULES]
    done = subprocess.run(
        command, cwd=_REPO, capture_output=True, text=True, timeout=HANG_SECS, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [module for module, *_ in found] == list(console.MODULES)
    for module, shown, status, slow in found:
        assert not slow, f"{module} loads {slow}"
        assert "--" in shown if flag == "--help" else isinstance(status, str), module
        assert not status or flag != "--help", module
    assert not done.stderr
