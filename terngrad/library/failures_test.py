"""What ends a process within `join` before it has met the others."""

import re
import sys

import pytest

from terngrad.testing.processes import Started

PROGRAM = """
import os
import terngrad
wrong = os.environ["TERNGRAD_RANK"] == {wrong!r}
engine = {engine!r} if wrong else "auto"
terngrad.join(engine=engine, timeout_secs=900).barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "options", "engine", "why"),
    [
        ("0", [], "parameter_server", "join: engine='parameter_server' needs ps_hosts"),
        pytest.param(
            "1",
            ["--ps", "1"],
            "collective",
            "join: engine='collective' must not have ps_hosts",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_law_10_an_error_in_join_is_told_to_the_others(tmp_path, wrong, options, engine, why):
    program = tmp_path / "program.py"
    # A ps has a rank of its own.
    program.write_text(
        PROGRAM.format(wrong=wrong, engine=engine).replace(
            "wrong =", "wrong = os.environ.get('TERNGRAD_JOB') != 'ps' and"
        )
    )
    command = [sys.executable, "-m", "terngrad.launch", "-n", "2", *options, str(program)]
    with Started(command) as run:
        assert run.finish(), run.output
    other = "10"[int(wrong)]
    told = rf"worker {wrong} \(.*\) failed: {re.escape(why)}"
    assert re.search(rf"^\[{other}\] worker {other} \(.*\) ends: {told}$", run.output, re.M)
    assert f"[{wrong}] {why}" in run.output
