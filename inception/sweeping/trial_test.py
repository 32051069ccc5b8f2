"""How a trial ends, with small programs in place of the training and the evaluation."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from inception.sweeping import messages, places, trial
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd, TrialSpec
from terngrad.testing.limits import HANG_SECS

TRAIN = """
    import os, pathlib, signal, sys, time
    folder = pathlib.Path(sys.argv[1])
    def save(*_):
        (folder / "saved").touch()
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    print("net: each sends at most 456 bytes a step, 2 bits a parameter.")
    print("Sent 123 bytes a step, 0.54 bits a parameter, on average.")
    print("cores", *sorted(os.sched_getaffinity(0)))
    print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"))
"""
WAIT = """
    (folder / "ready").touch()
    time.sleep(60)
"""
EVALUATE = """
    import sys
    for step in sys.argv[1:]:
        print(f"Succesfully loaded model from /x/model.ckpt-{step} at step={step}.")
        print(f"2026: precision @ 1 = 0.{step} recall @ 5 = 0.9000 [10 examples]", flush=True)
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """Returns a specification of stand-ins, given the end of the training and the evaluation."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")

    def spec(train="", evaluate="", follow=False, **share):
        for name, text in (("stand_in_train", TRAIN + train), ("stand_in_eval", evaluate)):
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text or EVALUATE))
        folder = str(tmp_path / "trial")
        commands = ["stand_in_train", folder], ["stand_in_eval", "10", "25"]
        return TrialSpec(folder, *commands, follow, **share)

    return spec


@dataclasses.dataclass
class Events:
    """The events of a trial."""

    evaluations: list[Evaluation]
    end: TrialEnd


def run(spec, act=lambda connection: None):
    """Runs a trial as a sweep does; acts once it has started."""
    (place,) = places.on_this_machine(1)
    with place.start(spec) as connection:
        act(connection)
        *evaluations, end = connection.events()
    return Events(evaluations, end)


def when_ready(spec, action):
    def act(connection):
        deadline = time.monotonic() + HANG_SECS
        while not os.path.exists(f"{spec.folder}/ready"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        action(connection)

    return act


@pytest.mark.parametrize("follow", [False, True])
def test_a_trial_trains_evaluates_and_reports_seconds_and_bytes(spec, follow):
    events = run(spec(follow=follow))
    assert events.evaluations == [Evaluation(10, 0.10, 0.9), Evaluation(25, 0.25, 0.9)]
    assert events.end.outcome is Outcome.DONE
    assert events.end.last == Evaluation(25, 0.25, 0.9)
    assert events.end.bytes_sent == 123
    assert 0 < events.end.seconds < HANG_SECS


AT_MOST = "[0] net: each of 2 workers pushes at most 456 bytes a step and pulls 789, without"
PUSHED = "[1] Pushed 123 bytes a step, 0.5 bits a parameter, and pulled 789, 32 bits, on average."


@pytest.mark.parametrize(
    ("lines", "sent"),
    [
        ([AT_MOST, PUSHED], 123),
        ([AT_MOST, PUSHED, AT_MOST], 123),  # the finished training was run again
        (["net: each worker sends at most 456 bytes a step, 2 bits"], 456),
        (["net: each sends 456 bytes a step, 32 bits"], 456),
        (["no bytes a step"], None),
    ],
)
def test_bytes_are_those_measured_last_or_else_those_expected(lines, sent, spec, tmp_path):
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "train.log").write_text("\n".join(lines) + "\n")
    given = spec()
    (tmp_path / "stand_in_train.py").write_text("")
    assert run(given).end.bytes_sent == sent


def test_a_trial_uses_its_share_of_cores_and_gpus(spec, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    cores = sorted(os.sched_getaffinity(0))
    run(spec(slot=1, slots=2))
    lines = (tmp_path / "trial" / "train.log").read_text().splitlines()
    assert f"cores {' '.join(map(str, cores[1::2] or cores[:1]))}" in lines
    assert "GPUs 5,7" in lines


@pytest.mark.parametrize("follow", [False, True])
def test_a_trial_that_is_stopped_saves(spec, tmp_path, follow):
    given = spec(WAIT, follow=follow)
    events = run(given, when_ready(given, lambda connection: connection.stop()))
    assert events.end.outcome is Outcome.STOPPED
    assert (tmp_path / "trial" / "saved").exists()


def test_a_training_saves_when_its_sweep_is_killed(spec, tmp_path):
    given = spec(WAIT)
    sweep = subprocess.Popen([sys.executable, "-m", "inception.sweeping.trial"], stdin=-1)
    sweep.stdin.write(messages.write(given).encode())
    sweep.stdin.flush()
    when_ready(given, lambda _: sweep.stdin.close())(None)  # as the pipe of a dead process is
    assert sweep.wait(HANG_SECS) == 0
    assert (tmp_path / "trial" / "saved").exists()


def test_a_training_that_is_killed_is_distinguished_from_one_that_fails(spec):
    killed = run(spec("\n    os.kill(os.getpid(), signal.SIGKILL)")).end
    assert (killed.outcome, killed.reason) == (
        Outcome.DIED,
        "stand_in_train was ended by SIGKILL",
    )
    failed = run(spec("\n    sys.exit('train: flag --x: must be y')")).end
    assert (failed.outcome, failed.reason) == (Outcome.FAILED, "train: flag --x: must be y")
    failed = run(spec(evaluate="raise SystemExit('eval: no checkpoint')")).end
    assert (failed.outcome, failed.reason) == (Outcome.FAILED, "eval: no checkpoint")


def test_a_trial_whose_process_is_lost_is_reported_as_lost(spec):
    given = spec(WAIT.replace("60", "3"))

    def kill(connection):
        connection._process.send_signal(signal.SIGKILL)

    end = run(given, when_ready(given, kill)).end
    assert end.outcome is Outcome.LOST
    assert end.reason == "job 0: the trial's process ended with status -9"
    again = run(spec())  # waits until the programs of the lost process have ended
    assert again.end.outcome is Outcome.DONE


def test_the_folder_of_another_training_is_refused_and_left_as_it_is(spec):
    given = spec()
    again = dataclasses.replace(given, train=[*given.train, f"--train_dir={given.folder}/train"])
    other = dataclasses.replace(given, train=[*given.train, "--grad_bits=1"])
    assert run(again).end.outcome is Outcome.DONE
    log = os.path.join(given.folder, "train.log")
    size = os.path.getsize(log)
    end = run(other).end
    assert end.outcome is Outcome.FAILED
    assert end.reason.startswith(f"{given.folder} holds another training (stand_in_train ")
    assert end.reason.endswith("; choose another --sweep_dir") and os.path.getsize(log) == size
    assert run(given).end.outcome is Outcome.DONE


def test_seconds_add_up_over_attempts(spec):
    first = run(spec("\n    time.sleep(0.3)")).end.seconds
    assert run(spec()).end.seconds > first >= 0.3


def test_evaluations_count_also_while_their_log_cannot_be_written(spec, tmp_path):
    given = spec()
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "eval.log").symlink_to("/dev/full")
    assert run(given).end.last == Evaluation(25, 0.25, 0.9)


def test_seconds_are_noted_while_a_trial_trains(spec, monkeypatch):
    monkeypatch.setattr(trial, "_NOTE_SECS", 0)
    wait = f"""
    end = time.monotonic() + {HANG_SECS}
    while float((folder / "seconds").read_text()) < 0.2:
        assert time.monotonic() < end, "no seconds are noted"
        time.sleep(0.01)
"""
    end = trial.run(spec(wait), threading.Event(), lambda evaluation: None)
    assert (end.outcome, end.reason) == (Outcome.DONE, "")


def test_seconds_of_a_lost_attempt_count_up_to_the_end_of_its_training(spec):
    given = spec(WAIT.replace("60", "1") + "    print('saved', flush=True)\n")
    kill = lambda connection: connection._process.send_signal(signal.SIGKILL)
    assert run(given, when_ready(given, kill)).end.outcome is Outcome.LOST
    assert run(spec()).end.seconds > 1


def test_events_survive_the_pipe_and_other_lines_are_refused():
    end = TrialEnd(Outcome.DIED, "why", 1.5, 7, Evaluation(3, 0.5, 0.75))
    assert messages.read_event(messages.write(end)) == end
    assert messages.read_event(messages.write(end.last)) == end.last
    given = TrialSpec("f", ["a"], ["b"], True, 1, 2)
    assert messages.read_spec(messages.write(given)) == given
    for line in ("Welcome to host!", json.dumps({"step": 1, "x": 2})):
        with pytest.raises(ValueError):
            messages.read_event(line)


STUB = """#!/usr/bin/env bash
# Stands for ssh: runs its command here, in a folder like that after a login.
while [[ "$1" != -- ]]; do shift; done
[[ "$2" != lost ]] || { echo "ssh: connect to host lost: refused" >&2; exit 255; }
echo "Welcome to $2!"
cd / && exec bash -c "$3"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(STUB)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_trials_run_on_hosts_that_greet_and_lost_hosts_are_named(spec, ssh):
    good, lost = places.on_hosts(["good", "lost"], 1, "", "")
    good.check()
    with pytest.raises(ValueError, match="lost cannot run trials: ssh: connect to host lost: ref"):
        lost.check()
    with good.start(spec()) as connection:
        *_, end = connection.events()
    assert end.outcome is Outcome.DONE
    with lost.start(spec()) as connection:
        (end,) = connection.events()
    assert (end.outcome, end.reason) == (Outcome.LOST, "lost: ssh: connect to host lost: refused")


def test_a_host_without_the_repository_is_reported(ssh, tmp_path):
    (place,) = places.on_hosts(["good"], 1, str(tmp_path / "it's missing"), "")
    with pytest.raises(ValueError, match=r"good cannot run trials: no such folder: .*it's missing"):
        place.check()
