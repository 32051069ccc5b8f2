"""The first command of a newcomer, with fewer steps."""

import functools
import re
import signal
import types

import pytest

from inception import app, quickstart
from inception.flags import table
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import Started


def run(*flags):
    define = functools.partial(table.define, quickstart._Options)
    app.run(quickstart.main, define, ["quickstart", *flags])


@pytest.fixture(name="programs")
def _programs(monkeypatch):
    """What quickstart starts, forked; its handlers of signals end with the test."""
    started = []

    def start(command):
        started.append(Started(command))
        return started[-1].process

    monkeypatch.setattr(quickstart, "subprocess", types.SimpleNamespace(Popen=start))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield started
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for program in started:
        program.end()


@pytest.mark.slow
def test_both_gradients_are_trained_compared_and_drawn(tmp_path, programs, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "_CHECKPOINTS", 2)  # of 10, each takes seconds to evaluate
    run(f"--output_dir={tmp_path / 'results'}", "--max_steps=10")
    for program in programs:
        program.reader.join(HANG_SECS)
    assert ["step 10, " in program.output for program in programs] == [False, True, True]
    printed = capsys.readouterr().out
    rows = dict(re.findall(r"^\W*(float|ternary)\W.*?([\d.]+ x)", printed, re.MULTILINE))
    assert rows == {"float": "1.00 x", "ternary": "16.00 x"}
    picture = tmp_path / "results" / "comparison.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_signals_end_the_program_again_once_a_training_has_ended(monkeypatch):
    numbers = signal.SIGINT, signal.SIGTERM
    before, during = [signal.getsignal(number) for number in numbers], []

    def wait():
        during.extend(signal.getsignal(number) for number in numbers)
        return 0

    child = types.SimpleNamespace(Popen=lambda command: types.SimpleNamespace(wait=wait))
    monkeypatch.setattr(quickstart, "subprocess", child)
    quickstart._run("module")
    assert not set(during) & set(before)
    assert [signal.getsignal(number) for number in numbers] == before


def test_bad_flags_are_named_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match=r"^quickstart: flag --max_steps=3: .* 10[^\n]*$"):
        run(f"--output_dir={tmp_path}", "--max_steps=3")
    assert not [*tmp_path.iterdir()]
