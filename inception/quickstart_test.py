"""The first command of a newcomer, with fewer steps."""

import re
import subprocess
import sys

import pytest

from terngrad.testing.limits import HANG_SECS

# A checkpoint takes seconds to evaluate; at its end the program evaluates 10 of each run.
WITH_TWO_CHECKPOINTS = """
import functools
from inception import app, quickstart
from inception.flags import table
quickstart._CHECKPOINTS = 2
app.run(quickstart.main, functools.partial(table.define, quickstart._Options))
"""


def quickstart(*flags, program=("-m", "inception.quickstart")):
    command = [sys.executable, *program, *map(str, flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECS, check=False)


@pytest.mark.slow
def test_both_gradients_are_trained_compared_and_drawn(tmp_path):
    flags = f"--output_dir={tmp_path / 'results'}", "--max_steps=10"
    done = quickstart(*flags, program=("-c", WITH_TWO_CHECKPOINTS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": step 10, ") == 2
    rows = dict(re.findall(r"^\W*(float|ternary)\W.*?([\d.]+ x)", done.stdout, re.MULTILINE))
    assert rows == {"float": "1.00 x", "ternary": "16.00 x"}
    picture = tmp_path / "results" / "comparison.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bad_flags_are_named_in_one_line(tmp_path):
    done = quickstart(f"--output_dir={tmp_path}", "--max_steps=3")
    assert done.returncode == 1
    assert re.fullmatch(r"quickstart: flag --max_steps=3: .* 10.*\n", done.stderr)
    assert not [*tmp_path.iterdir()]
