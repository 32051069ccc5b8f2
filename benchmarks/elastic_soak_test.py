"""A soak of workers that come and go finds steps after which they differ."""

import os
import shutil
import signal
import time
import types

import pytest

from benchmarks import elastic_soak


def test_steps_that_differ_and_steps_made_twice_are_counted():
    calm = [[(1, "a"), (2, "b")], [(2, "b"), (3, "c")]]
    found = [list(elastic_soak.differences(each).values()) for each in (calm, [])]
    assert found == [[3, 0, 0], [0, 0, 0]]
    other = [*calm, [(3, "x")], [(4, "d"), (4, "d")]]
    assert list(elastic_soak.differences(other).values()) == [4, 1, 1]


class Ending:
    """A process that runs for so many looks after it was asked to end."""

    def __init__(self, looks, steps=()):
        self.looks, self.steps, self.sent = looks, [*steps], []

    def steps_after(self, moment):
        return sum(step > moment for step in self.steps)

    def send(self, number):
        self.sent.append(number)

    def is_running(self):
        self.looks -= bool(self.sent)
        return self.looks > 0


class Trained:
    """A training of such processes."""

    def __init__(self, looks):
        self.processes = {f"worker {i}": Ending(looks, [1.0]) for i in range(3)}
        self.again = []

    def wait_for(self, what, condition):
        while not condition():
            pass

    def start_again(self, name):
        self.again.append(name)
        self.processes[name] = Ending(1)


@pytest.mark.parametrize("looks", [1, 5])
def test_a_worker_that_takes_its_time_to_end_as_it_was_asked_has_not_ended_alone(looks):
    training = Trained(looks)
    soak = elastic_soak._Soak(types.SimpleNamespace(seed=1, workers=3), training)
    soak._do("end", now=0.0)
    (victim,) = soak._absent
    process = training.processes[victim]
    for now in (0.0, 100.0, 200.0):
        soak._bring_back(now)
    assert training.again == [victim] and soak.ended_alone == 0
    assert process.sent == [signal.SIGTERM]


def test_a_worker_that_is_back_counts_only_once_it_has_made_a_step():
    training = Trained(1)
    soak = elastic_soak._Soak(types.SimpleNamespace(seed=1, workers=3), training)
    for moment, kind in enumerate(["kill", "kill_first", "end"]):
        soak._do(kind, now=float(moment))
    assert sum(soak.faults.values()) == 2  # the third one would have left nobody
    soak._bring_back(now=100.0)
    soak._do("kill", now=100.0)
    assert sum(soak.faults.values()) == 2
    for process in training.processes.values():
        process.steps.append(time.monotonic())
    soak._do("kill", now=100.0)
    assert sum(soak.faults.values()) == 3


@pytest.mark.parametrize(("user", "program"), [(1000, "/bin/ss"), (0, None)])
def test_cutting_connections_is_refused_without_root_or_the_program(monkeypatch, user, program):
    monkeypatch.setattr("os.geteuid", lambda: user)
    monkeypatch.setattr("shutil.which", lambda name: program)
    with pytest.raises(ValueError, match="--faults=cut: needs root and the program ss"):
        elastic_soak.main(elastic_soak._Options(faults=("kill", "cut")))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("engine", ["all_reduce_elastic", "parameter_servers_elastic"])
def test_faults_at_random_leave_equal_weights(run, engine):
    can_cut = os.geteuid() == 0 and shutil.which("ss")
    kinds = [*elastic_soak._FAULTS[:-1], *(["cut"] if can_cut else [])]
    found = run(
        "elastic_soak",
        *(f"--engine={engine}", "--workers=3", "--timeout_secs=10", f"--faults={','.join(kinds)}"),
        *("--minutes=0.5", "--every_secs=4", "--seed=3"),
    )
    assert sum(found["faults"].values()) >= 3
    assert found["steps"] > 10
    assert found["steps after which two workers differed"] == 0
    assert found["steps that a process made twice"] == 0
    assert found["workers that ended by themselves"] == 0
    waits = found["longest wait of the others, s (median, largest)"]
    assert all(longest > 0 for _, longest in waits.values())
