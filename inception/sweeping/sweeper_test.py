"""What a sweep says of the flags that it is asked to try, before it starts a trial."""

import contextlib
import csv
import signal
import threading
import time

import pytest
from absl.flags import FlagValues
from optuna.exceptions import StorageInternalError

from inception import app
from inception.flags import table
from inception.sweeping import program, sweeper
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd
from inception.sweeping.settings import SweepFlags
from terngrad.testing.limits import HANG_SECS


def settings_of(*own):
    values = FlagValues()
    table.define(SweepFlags, values)
    app.parse(values, ["--program=inception.mnist_train", *own])
    return table.read(SweepFlags, values)


def plan(*own):
    settings = settings_of(*own)
    return sweeper.make_plan(settings, program.find_program(settings.program, ""), [])


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            ["--grid=grad_bits=1,32 clip_factor=0,2"],
            "in 2 of 4 trials, with float gradients",
        ),
        (["--tpe=12", "--space=dropout_keep_prob=0.6..0.9"], "in 10 of the first 10 trials, with"),
        (["--grid=optimizer=gd,adam num_epochs_per_decay=1,2"], "in 2 of 4 trials, with a decay"),
    ],
)
def test_a_flag_without_effect_in_some_trials_is_reported(own, message, capsys):
    plan(*own)
    (line,) = capsys.readouterr().out.splitlines()
    assert message in line


def test_nothing_is_reported_of_flags_with_effect(capsys):
    plan("--random=5", "--space=clip_factor=1..4 grad_bits=1")
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "given"),
    [
        ("slim.train_image_classifier", ["--dataset_dir=/nowhere"]),
        ("inception.mnist_distributed_train", ["--worker_hosts=127.0.0.1:1"]),
        ("inception.mnist_distributed_train", ["--variable_update=mpi"]),
    ],
)
def test_a_program_that_needs_no_launcher_is_swept_without_workers(module, given):
    settings = settings_of(f"--program={module}", "--grid=batch_size=8")
    assert sweeper.make_plan(settings, program.find_program(module, ""), given).total == 1


@pytest.fixture(name="sweep")
def _sweep(monkeypatch, tmp_path, capsys):
    """Runs a sweep whose trials end at once, as its specification says; returns what it printed."""

    def run(grid, ends):
        class Sweeper:
            def __init__(self, study, *others):
                self.study = study

            def run(self, found):
                for end in ends:
                    self.study.end(self.study.next(), end, False, 0)

        monkeypatch.setattr(sweeper, "Sweeper", Sweeper)
        sweeper.sweep(settings_of(f"--sweep_dir={tmp_path}", f"--grid={grid}"), [])
        return capsys.readouterr().out

    return run


def test_values_that_look_like_markup_are_in_the_table_as_they_are(sweep):
    ends = [TrialEnd(Outcome.DONE, "", 1.0, 100, Evaluation(20, 0.5, 1.0))] * 3
    table, _, _ = sweep("data_dir=/x[/y],/v[v3],/:smile:", ends).partition("All trials: ")
    (shown,) = [line for line in table.splitlines() if "trial" in line and "state" in line]
    assert "data_dir" in shown
    for value in ("/x[/y]", "/v[v3]", "/:smile:"):
        assert f" {value} " in table.partition(shown)[2]


# DONE without a precision counts as failed, too.
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.DONE])
def test_a_sweep_without_a_complete_trial_has_failed(sweep, outcome, capsys):
    with pytest.raises(ValueError, match=r"^none of 2 trials is complete; .*trials\.csv has"):
        sweep("optimizer=gd,adam", [TrialEnd(outcome, "no such net")] * 2)
    assert "All trials: " in capsys.readouterr().out


def test_a_sweep_over_two_lists_ranks_its_trials_and_draws_pictures(sweep, tmp_path):
    precisions = (0.3, 0.9, 0.1, 0.5)
    ends = [
        TrialEnd(Outcome.DONE, "", 1.0, 100, Evaluation(20, value, 1.0)) for value in precisions
    ]
    printed = sweep("grad_bits=1,32 initial_learning_rate=0.1,0.2", ends)
    with (tmp_path / "trials.csv").open(newline="") as file:
        found = [float(row["precision"]) for row in csv.DictReader(file)]
    assert found == sorted(precisions, reverse=True)
    for name in ("heat_map.png", "importance.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"Picture: {tmp_path / name}\n" in printed
    best = printed.partition("Repeat the best trial: ")[2]
    assert "--grad_bits=1 " in best and "--initial_learning_rate=0.2 " in best


class Place:
    """Where each trial ends at once, without a program."""

    label, slot, slots = "here", 0, 1

    def __init__(self):
        self.specs = []

    @contextlib.contextmanager
    def start(self, spec):
        self.specs.append(spec)
        yield self

    def events(self):
        yield TrialEnd(Outcome.DONE, "", 1.0, 100, Evaluation(20, 0.5, 1.0))

    def stop(self):
        pass


@pytest.fixture
def run_at_places(monkeypatch, tmp_path):
    """Runs a sweep in a folder, at places without programs; returns the rows of its trials.csv."""

    def run(*own, results="."):
        place = Place()
        monkeypatch.setattr(sweeper.places, "on_this_machine", lambda jobs: [place])
        sweeper.sweep(settings_of(f"--sweep_dir={tmp_path}", *own), ["--batch_size=8"])
        with (tmp_path / results / "trials.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return run


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ("num_nodes=2..3", "flag --batch_size=8: must be a multiple of the 3 nodes"),
        ("grad_bits=1..8", "flag --grad_bits=6: must be 32, 16, "),
    ],
)
def test_a_point_that_the_program_refuses_is_a_failed_trial(run_at_places, space, reason):
    found = run_at_places("--random=5", f"--space={space}")
    states = [row["state"] for row in found]
    assert set(states) == {"done", "failed"} and len(states) == 5
    assert any(row["reason"].startswith(reason) for row in found)


def test_studies_in_one_folder_have_trials_and_results_of_their_own(run_at_places, tmp_path):
    first, others = run_at_places("--grid=grad_bits=1"), ["--study=two/..", "--grid=seed=1,2"]
    named = run_at_places(*others, results="study_two%2F..")
    assert [row["trial"] for row in first] == ["trial_0000"]
    assert [row["trial"] for row in named] == [f"study_two%2F../trial_000{i}" for i in range(2)]
    assert run_at_places("--grid=grad_bits=1") == first


def test_a_study_is_not_continued_with_other_evaluations(run_at_places):
    run_at_places("--grid=grad_bits=1", "--eval_flags=--num_examples=10")
    with pytest.raises(ValueError, match="another eval_flags: --num_examples=10"):
        run_at_places("--grid=grad_bits=1", "--eval_flags=--num_examples=20")
    with pytest.raises(ValueError, match="another eval_program: inception"):
        run_at_places("--grid=grad_bits=1", "--eval_program=inception.cifar10_eval")


def stop(*_):
    raise KeyboardInterrupt


def test_ctrl_c_says_that_trainings_saved_only_if_they_ran(run_at_places, monkeypatch, capsys):
    monkeypatch.setattr(sweeper.Sweeper, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        run_at_places("--grid=grad_bits=1")
    assert "SIGINT: the trainings saved; the same command goes on." in capsys.readouterr().out
    monkeypatch.setattr(sweeper, "open_storage", stop)
    with pytest.raises(KeyboardInterrupt):
        run_at_places("--grid=grad_bits=1")
    assert "saved" not in capsys.readouterr().out


def test_at_a_signal_the_sweep_waits_until_its_trainings_have_saved(run_at_places, monkeypatch):
    stopped, saved = threading.Event(), []

    def events(_):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert stopped.wait(HANG_SECS)
        time.sleep(0.5)  # it saves
        saved.append(True)
        yield TrialEnd(Outcome.STOPPED)

    monkeypatch.setattr(Place, "events", events)
    monkeypatch.setattr(Place, "stop", lambda _: stopped.set())
    with pytest.raises(KeyboardInterrupt):
        run_at_places("--grid=grad_bits=1")
    assert saved


def test_a_trial_that_has_trained_to_its_end_is_not_pruned(run_at_places, monkeypatch):
    stopped = threading.Event()

    def events(place):
        stopped.clear()
        yield Evaluation(20, 0.1, 1.0)
        outcome = Outcome.STOPPED if stopped.is_set() else Outcome.DONE
        yield TrialEnd(outcome, "", 1.0, 100, Evaluation(20, 0.1, 1.0))

    monkeypatch.setattr(Place, "events", events)
    monkeypatch.setattr(Place, "stop", lambda _: stopped.set())
    monkeypatch.setattr(sweeper.Study, "report", lambda *_: True)  # worse than all others
    found = run_at_places("--grid=max_steps=20,40", "--pruner=median")
    assert {row["max_steps"]: row["state"] for row in found} == {"20": "done", "40": "pruned"}


def test_a_trial_that_another_sweep_has_taken_over_is_reported(run_at_places, monkeypatch, capsys):
    real = sweeper.Study.end

    def end(study, *arguments):
        return None if real(study, *arguments) is False else True

    monkeypatch.setattr(sweeper.Study, "end", end)
    assert [row["state"] for row in run_at_places("--grid=grad_bits=1")] == ["done"]
    assert "trial_0000 at here: another sweep has taken it over, because" in capsys.readouterr().out


def test_a_database_that_fails_during_the_sweep_is_named_in_one_line(run_at_places, monkeypatch):
    def fail(*_):
        raise StorageInternalError("") from RuntimeError("database is locked\n[SQL: UPDATE]")

    monkeypatch.setattr(sweeper.Study, "end", fail)
    with pytest.raises(ValueError, match=r"^flag --storage=.*/study.journal: database is locked; "):
        run_at_places("--grid=grad_bits=1")


def test_a_failed_trial_runs_again_only_with_the_flag_for_it(run_at_places, monkeypatch):
    failed = TrialEnd(Outcome.FAILED, "no data")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=r"none .* --retry_failed"):
        patch.setattr(Place, "events", lambda _: iter([failed]))
        run_at_places("--grid=grad_bits=1,2")
    with pytest.raises(ValueError, match="none of 2 trials is complete"):
        run_at_places("--grid=grad_bits=1,2")
    found = run_at_places("--grid=grad_bits=1,2", "--retry_failed")
    assert [(row["trial"], row["state"]) for row in found] == [
        ("trial_0000", "done"),
        ("trial_0001", "done"),
    ]
