"""What a launcher makes of the answers of hosts, with small commands in place of ssh."""

import dataclasses
import json
import shlex

import pytest

from terngrad.launcher.fleet import Fleet
from terngrad.launcher.process import MARK, Answer, Process

PROCESSES = [Process("worker 0", ["x"], "a"), Process("ps 0", ["x"], "b", is_ps=True)]


def answering(output, status=0):
    """A fleet whose hosts print a text."""
    return Fleet(
        PROCESSES, lambda host: ["sh", "-c", f"printf %s {shlex.quote(output)}; exit {status}"]
    )


def as_text(answer, before="Welcome!\n"):
    return f"{before}\n{MARK}\n{json.dumps(dataclasses.asdict(answer))}\n"


def test_problems_name_their_host_and_control_characters_never_reach_the_terminal():
    found = answering(as_text(Answer(["\x1b[2Jfine"], ["bad\x07"], ["dead"]))).ask("status")
    assert found.lines == ["[2Jfine"] * 2
    assert (found.problems, found.unexpected) == (["a: bad", "b: bad"], ["a: dead", "b: dead"])


@pytest.mark.parametrize(
    ("output", "status", "why"),
    [
        ("closed", 0, "closed"),
        (f"\n{MARK}\n", 0, "its working copy is of another version"),
        (as_text(Answer()).replace("logs", "other"), 0, "its working copy is of another version"),
        (as_text(Answer()), 255, "Welcome!"),
    ],
)
def test_a_host_that_does_not_answer_is_named(output, status, why):
    found = answering(output, status).ask("stop", secs=1)
    assert found.problems == [f"{host} cannot be reached ({why})" for host in "ab"]


def test_a_missing_ssh_is_reported():
    found = Fleet(PROCESSES[:1], lambda host: ["/no/ssh"]).ask("status")
    assert found.problems == ["a cannot be reached (/no/ssh: No such file or directory)"]


def test_a_stop_spares_what_another_run_has_started():
    refused = answering(as_text(Answer(refused=["ps 0", "other"]))).ask("start").refused
    assert refused == ["ps 0"]
    assert answering("asked").stop(1, refused).problems == ["a cannot be reached (asked)"]


def test_a_host_gives_no_logs_but_those_of_its_processes():
    logs = {"worker 0": "caf\xe9\r", "ps 0": "b", "../else": "x"}
    fleet = Fleet(
        [*PROCESSES, Process("worker 1", ["x"], "c")],
        lambda host: ["echo", as_text(Answer(logs={"ps 0": host} if host != "a" else logs))],
    )
    assert fleet.ask("status").logs == {"worker 0": "caf\xe9\r", "ps 0": "b"}
