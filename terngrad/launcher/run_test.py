"""How a run ends, and which of its processes is blamed, with small scripts as processes."""

import math
import signal

import pytest

from terngrad.coordination import groups
from terngrad.coordination.coordinator import WAITS as WAITS_FOR_MORE
from terngrad.coordination.decisions import in_words
from terngrad.launcher.process import REACHED, Process
from terngrad.launcher.run import Run, login_pauses
from terngrad.launcher.state import StateFile
from terngrad.launcher.terminal import Requests
from terngrad.service.messages import View

PRELUDE = """
wait_for() { until [[ -e $1 ]]; do sleep 0.01; done; }
on() { trap "$2" $1; touch "ready_$RANK"; while true; do sleep 0.01; done; }
"""
LOST = "exit 75"
WAITS = "on TERM 'exit 143'"
# Ends after process 0 has, and the launcher knows that.
AFTER = "touch ready_1; wait_for pid; while kill -0 $(< pid) 2> /dev/null; do sleep 0.01; done; "
FIRST = "wait_for ready_1; echo $$ > new; mv new pid; "
UNREACHED = "wait_for ready_0; echo No route; exit 255"  # an ssh
ASKED = ": the others are asked to end."


class Lines(list):
    """The output of a run; a line may be answered."""

    def __init__(self, answers):
        super().__init__()
        self._answers = answers

    def show(self, line):
        self.append(str(line))
        self._answers.get(str(line), lambda: None)()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs scripts as processes 0, 1, ... in a folder; returns the status and all lines."""
    monkeypatch.chdir(tmp_path)
    requests = Requests()

    def run(*scripts, answers=None, notice_secs=0.0, names="0123", **options):
        processes = [
            Process(
                f"ps {i}" if script.startswith("ps: ") else names[i],
                ["bash", "-c", PRELUDE + script.removeprefix("ps: ")],
                environment={"RANK": str(i)},
                host="h" if REACHED in script or script == UNREACHED else "",
                is_ps=script.startswith("ps: "),
                state=str(tmp_path / f"{i}.json"),
                log=str(tmp_path / f"{i}.log"),
            )
            for i, script in enumerate(scripts)
        ]
        lines = Lines(answers or {})
        own = Run(processes, requests, lines, notice_secs=notice_secs, **options)
        return own.run(), list(lines)

    run.requests = requests
    return run


@pytest.mark.parametrize(
    ("scripts", "notice_secs", "status", "named"),
    [
        ([WAITS, "wait_for ready_0; exit 5"], 0, 5, [f"1 ended with 5{ASKED}"]),
        (["exit 0", "exit 5"], math.inf, 5, ["1 ended with 5."]),
        ([WAITS, "kill -KILL $$"], 0, 137, [f"1 was killed by SIGKILL{ASKED}"]),
        ([f"{FIRST} exit 3", f"{AFTER} exit 4"], math.inf, 3, ["0 ended with 3."]),
        ([FIRST + LOST, AFTER + LOST], math.inf, 75, ["0 ended because of another."]),
        # A process that ends because of another is not blamed, though it ends first.
        ([FIRST + LOST, f"{AFTER} exit 1"], math.inf, 1, ["1 ended with 1."]),
        ([FIRST + LOST, f"{AFTER} exit 1", WAITS], 4, 1, [f"1 ended with 1{ASKED}"]),
        # A process with a status of its own takes longer to end than the others may wait.
        (
            [f"wait_for ready_1; {LOST}", "on TERM 'exit 3'"],
            0,
            3,
            [f"0 ended because of another{ASKED}", "1 ended with 3."],
        ),
        # So does one that others have lost, and which is asked to end.
        ([f"wait_for ready_1; {LOST}", WAITS], 0, 75, [f"0 ended because of another{ASKED}"]),
    ],
)
def test_a_process_that_failed_by_itself_is_named_and_gives_the_status(
    run, scripts, notice_secs, status, named
):
    assert run(*scripts, notice_secs=notice_secs) == (status, named)


def test_a_process_that_shows_an_error_and_takes_long_to_end_is_blamed_for_it(run, tmp_path):
    error = "Traceback (most recent call last):"
    status, lines = run(
        f"wait_for shown; {LOST}",
        f"wait_for ready_2; echo '{error}'; wait_for asked; exit 1",
        "on TERM 'touch asked; exit 0'",
        answers={f"[1] {error}": (tmp_path / "shown").touch},
    )
    assert (status, lines) == (1, [f"[1] {error}", f"1 has shown an error{ASKED}"])


@pytest.mark.parametrize("relays", [False, True])
def test_workers_get_the_signal_or_sigterm_and_servers_end_after_them(run, monkeypatch, relays):
    monkeypatch.setattr("terngrad.launcher.run._PS_GRACE_SECS", 0.0)
    on_int = "trap 'sleep 0.3; echo INT; exit 1' INT; "
    status, lines = run(
        f"{on_int} on TERM 'sleep 0.3; echo TERM; exit 1'",
        "ps: trap 'echo ends; exit 143' TERM; wait_for ready_0; echo ready; on INT ''",
        answers={"[ps 1] ready": lambda: run.requests.note(signal.SIGINT)},
        relays=relays,
    )
    shown = ["[ps 1] ready", f"[0] {'INT' if relays else 'TERM'}", "[ps 1] ends"]
    assert (status, lines) == (128 + signal.SIGINT, shown)


def test_a_process_that_does_not_end_is_named_and_killed(run, monkeypatch):
    monkeypatch.setattr("terngrad.launcher.run.GRACE_SECS", 0.2)
    status, lines = run(
        "trap '' TERM; wait_for ready_1; echo ready; on INT ''",
        "trap '' TERM; echo saved model.ckpt-271; on INT ''",
        answers={"[0] ready": lambda: run.requests.note(signal.SIGTERM)},
    )
    killed = "is killed because it did not end within 0.2 s; not saved since"
    assert status == 128 + signal.SIGTERM
    assert lines[-2:] == [f"0 {killed} its last checkpoint.", f"1 {killed} step 271."]
    assert StateFile("0.json").condition().text == "ended by SIGKILL"


def test_a_killed_worker_that_is_stopped_before_its_restart_is_not_started_again(run, monkeypatch):
    monkeypatch.setattr("terngrad.launcher.run._PS_GRACE_SECS", 0.0)
    again = "0 was killed and is started again in 1 s."
    status, lines = run(
        "kill -KILL $$",
        f"ps: {WAITS}",
        answers={again: StateFile("0.json").ask_to_stop},
        restarts=9,
        tolerates_failures=True,
    )
    assert (status, lines) == (1, [again])


def test_a_worker_that_is_killed_again_and_again_is_left_out_and_the_others_go_on(
    run, monkeypatch, tmp_path
):
    monkeypatch.setattr("terngrad.launcher.process._FIRST_PAUSE_SECS", 0.0625)
    left_out = "1 was killed and is not started again after 5 runs of less than 30 s."
    status, lines = run(
        "wait_for done",
        "kill -KILL $$",
        answers={left_out: (tmp_path / "done").touch},
        restarts=9,
        tolerates_failures=True,
    )
    again = [f"1 was killed and is started again in {0.0625 * 2**i} s." for i in range(4)]
    assert (status, lines) == (0, [*again, left_out])


def trains(*workers, step=0):
    """A command that says which workers train, as a coordinator does."""
    members = groups.pack(workers)
    return f"echo '{in_words(View(members=members, steps=step))}'; "


AGAIN = "[[ -e killed ]] || { touch killed; kill -KILL $$; }; touch back; "


WAITING = f"echo 'worker 1 {WAITS_FOR_MORE} 600 s: 1 of at least 2 workers have joined.'; "


@pytest.mark.parametrize("host", ["", " host-b"])
@pytest.mark.parametrize("says", [trains(1), WAITING], ids=["it trains alone", "it waits"])
def test_a_worker_that_comes_back_when_the_training_is_done_is_ended(run, monkeypatch, says, host):
    monkeypatch.setattr("terngrad.launcher.process._FIRST_PAUSE_SECS", 0.1)
    status, lines = run(
        f"{trains(0, 1)}{trains(0, step=20)}wait_for back; exit 0",
        f"{AGAIN}{says}exec sleep 900",
        names=["0", f"1{host}"],
        restarts=9,
        tolerates_failures=True,
    )
    assert status == 0
    assert lines[-1] == f"1{host} came back when the training was done, and is ended."
    assert f"1{host} was killed and is started again in 0.1 s." in lines


def test_a_worker_that_comes_back_too_late_and_finds_nobody_is_no_failure(run, monkeypatch):
    monkeypatch.setattr("terngrad.launcher.process._FIRST_PAUSE_SECS", 0.1)
    again = {"restarts": 9, "tolerates_failures": True}
    until_0_ends = "while kill -0 $(< pid) 2> /dev/null; do sleep 0.01; done; "
    late = f"{AGAIN}{until_0_ends}sleep 1; {LOST}"
    found = run("echo $$ > pid; wait_for back; exit 0", late, **again)
    assert found == (0, ["1 was killed and is started again in 0.1 s."])


def test_a_worker_that_has_joined_again_may_take_longer_to_end(run, monkeypatch):
    monkeypatch.setattr("terngrad.launcher.process._FIRST_PAUSE_SECS", 0.1)
    status, lines = run(
        f"wait_for back; printf 'step 30'; {trains(0, 1, step=30)}touch done; exit 0",
        f"{AGAIN}wait_for done; sleep 1; echo saved",
        restarts=9,
        tolerates_failures=True,
    )
    assert (status, lines[-1]) == (0, "[1] saved")


def test_a_worker_that_is_killed_when_the_training_is_done_is_not_started_again(run):
    status, lines = run(
        f"{trains(0, 1)}echo $$ > new; mv new pid; exit 0",
        "wait_for pid; while kill -0 $(< pid) 2> /dev/null; do sleep 0.01; done; kill -KILL $$",
        restarts=9,
        tolerates_failures=True,
    )
    assert (status, lines[1:]) == (
        1,
        ["1 was killed when the training was done. It may not have saved."],
    )


def test_a_lost_host_does_not_end_the_others_if_it_was_reached(run, tmp_path):
    options = {"restarts": 9, "tolerates_failures": True}
    lost = "1 was lost: its ssh has ended. It is not started again."
    touch = lambda name: (tmp_path / name).touch
    status, lines = run(
        "wait_for done",
        f"printf 'title'; echo '{REACHED}'; echo up; wait_for seen; exit 255",
        answers={"[1] up": touch("seen"), lost: touch("done")},
        **options,
    )
    assert (status, lines) == (0, ["[1] up", lost])
    failed = (255, ["[1] No route", f"1 ended with 255{ASKED}"])
    # What a failure ends by SIGTERM is not started again.
    assert run("touch ready_0; exec sleep 900", UNREACHED, **options) == failed


def test_children_of_a_process_end_with_it(run, tmp_path):
    assert run("(sleep 2; touch late) & exit 0") == (0, [])
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize(("tolerates_failures", "secs"), [(True, 1), (False, 900)])
def test_the_others_may_go_on_after_a_failure_or_are_killed(
    run, monkeypatch, tmp_path, tolerates_failures, secs
):
    monkeypatch.setattr("terngrad.launcher.run.GRACE_SECS", 0.2)
    scripts = ("touch failed; exit 3", f"wait_for failed; sleep {secs}; touch ended")
    assert run(*scripts, notice_secs=None, tolerates_failures=tolerates_failures)[0] == 3
    assert (tmp_path / "ended").exists() == tolerates_failures


def test_many_logins_on_a_host_come_one_after_the_other():
    pauses = login_pauses(["one", "me@one"] * 5 + ["two"])
    assert pauses[:8] + pauses[-1:] == [0.0] * 9
    assert all(pauses[8:10])
