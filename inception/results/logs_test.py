"""The log line of a step, and the progress bar and spinner on a terminal."""

import datetime
import io
import os
import pty
import re
import subprocess
import sys

import pytest

from inception.results import logs
from terngrad.training.timing import Progress

NOON = datetime.datetime(2026, 1, 31, 12)
FIGURES = Progress(
    step=120,
    entropy_loss=2.0149,
    reg_loss=0.3051,
    learning_rate=0.01,
    examples_per_sec=1034.21,
    sec_per_batch=0.1238,
)


def on_a_terminal(
    command: list[str], columns: int = 120, *, check: bool = True, **variables: str
) -> str:
    """What a command writes to a terminal."""
    terminal, stdout = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": str(columns)} | variables
    subprocess.run(command, stdout=stdout, env=env, check=check)
    os.close(stdout)
    return os.read(terminal, 10_000).decode()


def test_the_line_of_a_step_is_the_one_that_tools_read():
    assert logs.step_line(FIGURES, NOON.replace(microsecond=123456)) == (
        "2026-01-31 12:00:00.123456: step 120, entropy_loss = 2.01, reg_loss = 0.31, "
        "total_loss = 2.32 (1034.2 examples/sec; 0.124 sec/batch)"
    )


def test_a_worker_names_itself_first():
    assert logs.step_line(FIGURES, NOON, worker=3).startswith(
        "Worker 3: 2026-01-31 12:00:00.000000: "
    )


def test_bar_and_spinner_are_silent_where_stdout_is_no_terminal(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    with logs.ProgressBar(0, 200) as bar:
        bar.update(FIGURES)
    with logs.Spinner() as spinner:
        spinner.stop()
    assert file.getvalue() == ""


_SPINNER = "from inception.results import logs\nwith logs.Spinner() as spinner:\n"


def test_the_spinner_shows_the_time_and_leaves_a_terminal_as_it_was():
    shown = on_a_terminal(
        [sys.executable, "-c", f"{_SPINNER}    spinner.stop()\n    print('step')"]
    )
    before, _, after = shown.partition("\x1b[?25h")  # shows the cursor again
    assert "0:00:00" in before and after.rpartition("\x1b[2K")[2].strip() == "step", shown


def test_a_process_that_ends_at_once_shows_the_cursor_that_a_spinner_hides():
    end = "    app.end_at_once(signal.SIGINT, 'over')"
    program = f"import signal\nfrom inception import app\n{_SPINNER}{end}"
    shown = on_a_terminal([sys.executable, "-c", program], check=False)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "SIGINT: over" in shown.rpartition("\x1b[?25h")[2]


_BAR = (
    "from inception.results import logs\n"
    "from terngrad.training.timing import Progress\n"
    "with logs.ProgressBar(0, 200) as bar:\n"
    f"    bar.update({FIGURES!r})\n"
)


@pytest.mark.parametrize("columns", [50, 80, 95])
def test_the_bar_fits_the_terminal(columns):
    shown = on_a_terminal([sys.executable, "-c", _BAR], columns)
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").split("\n")
    (row,) = {row for row in rows if "loss" in row}  # a wrapped one would go on in the next
    assert len(row) <= columns and "120/200" in row and "loss = 2.01 + 0.31" in row, shown


def test_no_bar_is_shown_on_the_terminals_that_open_mpi_makes():
    program = f"{_BAR}print('end')\n"
    shown = on_a_terminal([sys.executable, "-c", program], OMPI_COMM_WORLD_SIZE="2")
    assert shown == "end\r\n"
