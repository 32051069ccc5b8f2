"""Which lines of a program's output are left out after Ctrl-C."""

import subprocess
import sys

import pytest

from terngrad.cluster.tracebacks import without_stopped_imports

BEGIN = "Traceback (most recent call last):\n"
OWN = '  File "train.py", line 1, in <module>\n    import slow\n'
IMPORT = '  File "slow.py", line 7, in <module>\n    wait()\n'
CALL = '  File "train.py", line 9, in main\n    wait()\n    ^^^^^^\n'
FROZEN = '  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load\n'
CTRL_C = "KeyboardInterrupt\n"
LINK = "\nDuring handling of the above exception, another exception occurred:\n\n"


def passed(text, *, was_stopped=True):
    """Returns the text that passes, and how often some was left out."""
    left_out = []
    lines = text.splitlines(keepends=True)
    kept = without_stopped_imports(lines, lambda: was_stopped, lambda: left_out.append(1))
    return "".join(kept), len(left_out)


@pytest.mark.parametrize(
    "traceback",
    [
        BEGIN + OWN + IMPORT + CTRL_C,
        BEGIN + OWN + FROZEN + CTRL_C,
        BEGIN + OWN + IMPORT + "\n" + CTRL_C,  # a source file without a last newline
        BEGIN + OWN + IMPORT + CTRL_C + LINK + BEGIN + OWN + "ImportError: numpy failed\n",
    ],
)
def test_the_end_of_an_import_is_left_out_if_it_ends_the_program(traceback):
    assert passed("hello\n" + traceback) == ("hello\n", 1)
    for text in (traceback + "saved\n", traceback + LINK + "saved\n"):
        assert passed(text) == (text, 0), "the program goes on"
    assert passed(traceback, was_stopped=False) == (traceback, 0)


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + OWN + CALL + CTRL_C,  # where a program hangs must be seen
        BEGIN + OWN + IMPORT + "ImportError: no module\n",
        BEGIN + OWN + IMPORT,  # killed meanwhile
        "KeyboardInterrupt\n  a line\n",
        BEGIN + OWN + IMPORT + CTRL_C + "  epoch 1: saved\n",  # the program goes on
    ],
)
def test_all_else_passes(text):
    assert passed(text) == (text, 0)


def test_a_traceback_that_is_whole_passes_before_the_next_line():
    lines = iter([BEGIN, OWN, CALL, CTRL_C])
    passing = without_stopped_imports(lines, lambda: True, lambda: None)
    assert [next(passing) for _ in range(4)] == [BEGIN, OWN, CALL, CTRL_C]


@pytest.mark.parametrize("runner", ["cProfile", "trace --count -C counts"])
def test_where_a_program_hangs_is_seen_below_a_program_that_runs_it(tmp_path, runner):
    stop = "import os, signal\ndef stop():\n    os.kill(os.getpid(), signal.SIGINT)\nstop()"
    (tmp_path / "train.py").write_text(stop)
    command = [sys.executable, "-m", *runner.split(), "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert CTRL_C in done.stderr
    assert passed(done.stderr) == (done.stderr, 0)


@pytest.mark.parametrize("where", ["module", "function"])
def test_tracebacks_of_this_python_are_known(tmp_path, where):
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "slow.py").write_text(stop if where == "module" else f"def stop():\n    {stop}")
    (tmp_path / "train.py").write_text("import slow\nslow.stop()")
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert passed(done.stderr) == (("", 1) if where == "module" else (done.stderr, 0))
