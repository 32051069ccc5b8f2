"""Sweeps share a study: each point is tried once, and none is lost with a sweep."""

import contextlib
import dataclasses
import errno
import json
import os
import sqlite3

import optuna
import pytest
from optuna.trial import TrialState

from inception.sweeping import study
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd
from inception.sweeping.plan import Plan, point_of
from inception.sweeping.space import Choices, Range
from inception.sweeping.study import Study

GRID = Plan(
    program="p",
    launcher=(),
    arguments=("--a=1",),
    space={"x": Choices(("1", "2")), "y": Choices(("a", "b"))},
    method="grid",
    total=4,
    seed=1,
    objectives=("precision",),
    pruner="",
)
RANDOM = dataclasses.replace(
    GRID,
    method="random",
    total=5,
    space={"x": Range(0.001, 1.0, log=True), "n": Range(1, 9, False)},
)
TPE = dataclasses.replace(RANDOM, method="tpe", total=14)
DEAD = {"time": 0.0, "host": "elsewhere", "pid": 1, "birth": "x"}


@pytest.fixture
def storage(tmp_path):
    return study.open_storage(str(tmp_path / "journal"))


def done(precision=0.5, **others):
    return TrialEnd(Outcome.DONE, last=Evaluation(10, precision, 1.0), seconds=2.0, **others)


def run_all(opened, end=None):
    """Runs what there is to run; returns the trials."""
    trials = []
    while running := opened.next():
        trials.append(running)
        opened.end(running, end or done(), pruned=False, retries=2)
    return trials


def test_a_grid_is_tried_once_in_order_and_best_is_known(storage):
    opened, precisions = Study(storage, "s", GRID), iter((0.1, 0.9, 0.3, 0.2))
    points = []
    while running := opened.next():
        points.append(running.point)
        assert not opened.end(running, done(next(precisions)), pruned=False, retries=0)
    assert points == [{"x": x, "y": y} for x in "12" for y in "ab"]
    assert opened.is_over()
    assert opened.optuna.best_trial.params == {"x": "1", "y": "b"}


def test_two_sweeps_share_the_points(storage):
    first, second = Study(storage, "s", GRID), Study(storage, "s", GRID)
    trials = [opened.next() for _ in range(2) for opened in (first, second)]
    assert len({tuple(running.point.values()) for running in trials}) == 4
    assert len({running.folder for running in trials}) == 4
    assert first.next() is None and second.next() is None
    assert not first.is_over()  # until the trials of the second end
    for i, running in enumerate(trials):
        (first, second)[i % 2].end(running, done(), pruned=False, retries=0)
    assert first.is_over() and second.is_over()


def test_random_points_are_a_function_of_the_seed_within_their_ranges(tmp_path):
    def points(name, seed):
        plan = dataclasses.replace(RANDOM, seed=seed)
        opened = Study(study.open_storage(str(tmp_path / name)), "s", plan)
        return [running.point for running in run_all(opened)]

    assert points("a", 1) == points("b", 1) != points("c", 2)
    for point in points("d", 3):
        assert 0.001 <= float(point["x"]) <= 1 and 1 <= int(point["n"]) <= 9


def test_tpe_makes_as_many_trials_as_asked_for_also_with_two_sweeps(storage):
    first, second = Study(storage, "s", TPE), Study(storage, "s", TPE)
    trials = run_all(first)[:0]
    while not first.is_over():
        for opened in (first, second):
            if running := opened.next():
                trials.append(running)
                opened.end(running, done(), pruned=False, retries=0)
    assert len(first.results()) == TPE.total


def test_a_trial_that_more_sweeps_asked_for_than_are_needed_does_not_run(storage):
    plan = dataclasses.replace(TPE, total=1, space={"n": Range(1, 9, False)})
    opened = Study(storage, "s", plan)
    other = optuna.load_study(study_name="s", storage=storage)
    other.ask(plan.distributions)  # takes the only queued trial
    late = other.ask(plan.distributions)
    late.set_user_attr("point", "trial 1")
    opened.optuna.enqueue_trial({"n": 3}, user_attrs={"point": "trial 1", "attempt": 0})
    assert opened.next() is None


def test_a_trial_that_died_is_tried_again_in_its_folder_and_then_failed(storage):
    opened = Study(storage, "s", dataclasses.replace(GRID, space={"x": Choices(("1",))}, total=1))
    died = TrialEnd(Outcome.DIED, "was ended by SIGKILL", 1.0)
    folders, again = [], []
    while running := opened.next():
        folders.append(running.folder)
        again.append(opened.end(running, died, pruned=False, retries=2))
    assert folders == ["trial_0000"] * 3
    assert again == [True, True, False]
    assert opened.is_over()
    (result,) = opened.results()
    assert result.state is TrialState.FAIL
    assert result.user_attrs["reason"] == "was ended by SIGKILL"


def test_a_study_with_the_former_names_of_attributes_goes_on(storage):
    opened = Study(storage, "s", dataclasses.replace(GRID, space={"x": Choices(("1",))}, total=1))
    died = TrialEnd(Outcome.DIED, "was ended by SIGKILL", 1.0)
    assert not opened.end(opened.next(), died, pruned=False, retries=0)
    former = {"point": "0", "life": 1, "deaths": 2, "folder": "trial_0000"}
    opened.optuna.enqueue_trial({"x": "1"}, user_attrs=former)
    running = opened.next()
    assert running.folder == "trial_0000"
    assert not opened.end(running, died, pruned=False, retries=2)  # the third loss
    surplus = former | {"life": 2, "surplus": True}
    opened.optuna.enqueue_trial({"x": "1"}, user_attrs=surplus)
    assert [trial.number for trial in opened.results()] == [running.trial.number]


def test_a_trial_that_failed_is_not_tried_again(storage):
    opened = Study(storage, "s", GRID)
    running = opened.next()
    assert not opened.end(running, TrialEnd(Outcome.FAILED, "bad flag"), pruned=False, retries=9)
    assert len(run_all(opened)) == 3


def test_a_trial_without_an_objective_has_failed_and_says_which_is_missing(storage):
    opened = Study(storage, "s", dataclasses.replace(GRID, objectives=("precision", "bytes")))
    ends = [TrialEnd(Outcome.DONE, bytes_sent=0), done(0.5), TrialEnd(Outcome.DONE)]
    for end in ends:
        assert not opened.end(opened.next(), end, pruned=False, retries=0)
    missing = ("precision", "bytes", "precision and no bytes")
    for trial, names in zip(opened.results()[:3], missing, strict=True):
        assert trial.state is TrialState.FAIL and trial.user_attrs["outcome"] == "failed"
        assert trial.user_attrs["reason"].startswith(f"the programs printed no {names}; see ")


def test_failed_trials_are_tried_again_in_their_folders_when_that_is_asked_for(storage):
    opened = Study(storage, "s", GRID)
    died, lost = TrialEnd(Outcome.DIED, "SIGKILL"), TrialEnd(Outcome.LOST, "no host")
    good = opened.next()
    opened.end(good, done(), pruned=False, retries=0)
    for end in (died, lost, TrialEnd(Outcome.FAILED, "no data")):
        opened.end(opened.next(), end, pruned=False, retries=0)
    assert opened.is_over()
    others = [Study(storage, "s", GRID) for _ in "12"]
    for other in others:  # both sweeps are given the flag
        other.retry_failed()
    trials = run_all(others[1])
    assert [running.folder for running in trials] == [f"trial_000{i}" for i in (1, 2, 3)]
    assert {trial.state for trial in others[0].results()} == {TrialState.COMPLETE}
    others[0].retry_failed()
    assert others[0].is_over() and len(others[0].results()) == 4


def test_a_stopped_sweep_goes_on_with_the_same_trial(storage):
    opened = Study(storage, "s", GRID)
    running = opened.next()
    assert opened.end(running, TrialEnd(Outcome.STOPPED), pruned=False, retries=0)
    rest = run_all(Study(storage, "s", GRID))
    assert len(rest) == 4
    assert (running.point, running.folder) in [(other.point, other.folder) for other in rest]


def test_a_pruned_trial_is_not_tried_again(storage):
    plan = dataclasses.replace(GRID, pruner="median")
    opened = Study(storage, "s", plan)
    running = opened.next()
    assert not opened.end(running, TrialEnd(Outcome.STOPPED), pruned=True, retries=0)
    assert opened.trial(running.trial.number).state is TrialState.PRUNED
    assert len(run_all(opened)) == 3


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended but not queued again"])
def test_trials_of_a_lost_sweep_go_on_in_another_one_exactly_once(storage, monkeypatch, ended):
    lost = Study(storage, "s", GRID)
    monkeypatch.setattr(study, "heartbeat", lambda: DEAD)
    running = lost.next()
    monkeypatch.undo()
    if ended:
        lost.optuna.tell(running.trial.number, state=TrialState.FAIL)
    others = [Study(storage, "s", GRID) for _ in range(2)]
    trials = [running for opened in others for running in run_all(opened)]
    assert len(trials) == 4
    assert (running.point, running.folder) in [(other.point, other.folder) for other in trials]
    assert len(others[0].results()) == 4


@pytest.mark.parametrize("plan", [GRID, TPE], ids=["grid", "tpe"])
def test_a_trial_whose_sweep_ended_before_its_first_heartbeat_is_not_lost(
    storage, monkeypatch, plan
):
    opened = Study(storage, "s", plan)
    for _ in range(plan.total - 1):
        opened.end(opened.next(), done(), pruned=False, retries=0)
    opened.optuna.ask(plan.distributions)
    assert opened.next() is None and not opened.is_over()  # its heartbeat may be on its way
    monkeypatch.setattr(study, "_LOST_SECS", 0.0)
    (running,) = run_all(opened)
    assert opened.is_over()
    assert [trial.number for trial in opened.results()].count(running.trial.number) == 1
    assert len(opened.results()) == plan.total


def test_trials_of_a_living_sweep_are_left_to_it(storage):
    first, second = Study(storage, "s", GRID), Study(storage, "s", GRID)
    running = first.next()
    first.beat()
    assert running.point not in [other.point for other in run_all(second)]


@pytest.mark.parametrize("place", ["{}/journal", "sqlite:///{}/database"])
def test_a_sweep_that_was_silent_leaves_its_trial_to_the_one_that_took_it_over(
    tmp_path, monkeypatch, place
):
    plan = dataclasses.replace(GRID, space={"x": Choices("1")}, total=1, pruner="median")
    silent, other = (Study(study.open_storage(place.format(tmp_path)), "s", plan) for _ in "12")
    monkeypatch.setattr(study, "heartbeat", lambda: DEAD)
    running = silent.next()
    monkeypatch.undo()
    assert len(run_all(other)) == 1
    silent.beat()
    assert silent.report(running, Evaluation(5, 0.5, 1.0))  # so its training ends
    assert silent.end(running, TrialEnd(Outcome.STOPPED), True, 2) is None
    assert silent.is_over() and not silent.next()
    assert {trial.state for trial in silent.results()} == {TrialState.COMPLETE}


def test_a_trial_below_the_median_of_the_others_is_pruned(storage):
    plan = dataclasses.replace(RANDOM, total=8, pruner="median")
    opened = Study(storage, "s", plan)
    for _ in range(6):
        running = opened.next()
        assert not opened.report(running, Evaluation(5, 0.9, 1.0))
        opened.end(running, done(0.9), pruned=False, retries=0)
    assert opened.report(opened.next(), Evaluation(5, 0.1, 1.0))


def test_two_objectives_give_a_pareto_front(storage):
    plan = dataclasses.replace(GRID, objectives=("precision", "bytes"))
    opened = Study(storage, "s", plan)
    for precision, bytes_sent in ((0.9, 100), (0.8, 10), (0.7, 50), (0.9, 200)):
        opened.end(opened.next(), done(precision, bytes_sent=bytes_sent), False, 0)
    assert sorted(trial.values for trial in opened.optuna.best_trials) == [[0.8, 10], [0.9, 100]]


def test_law_10_another_plan_is_refused(storage):
    Study(storage, "s", GRID)
    other = dataclasses.replace(GRID, arguments=("--a=2",))
    with pytest.raises(ValueError, match=r"study s has another arguments: --a=1 \(now --a=2\)"):
        Study(storage, "s", other)


@pytest.mark.parametrize("plan", [GRID, TPE], ids=["grid", "tpe"])
def test_a_study_whose_sweep_was_killed_while_it_queued_trials_gets_the_others(
    storage, monkeypatch, plan
):
    queued, real = [], optuna.Study.enqueue_trial

    def kill_at_third(study, *arguments, **settings):
        if len(queued) == 2:
            raise KeyboardInterrupt
        queued.append(real(study, *arguments, **settings))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(optuna.Study, "enqueue_trial", kill_at_third)
        Study(storage, "s", plan)
    with pytest.raises(ValueError, match="study s has another space"):
        Study(storage, "s", dataclasses.replace(plan, space={"x": Choices(("3", "4"))}))
    points = [point_of(params) for params in plan.queued()]
    trials = run_all(Study(storage, "s", plan))
    assert [running.point for running in trials[: len(points)]] == points
    assert len(trials) == plan.total


def test_law_10_another_evaluation_is_refused_where_the_study_says_how_it_evaluates(storage):
    first = dataclasses.replace(GRID, eval_program="e", eval_flags=("--num_examples=10",))
    opened = Study(storage, "s", first)
    others = {"eval_program": "f", "eval_flags": ("--num_examples=20", "--x=y")}
    for name, value in others.items():
        with pytest.raises(ValueError, match=f"study s has another {name}: "):
            Study(storage, "s", dataclasses.replace(first, **{name: value}))
    former = {name: word for name, word in first.description.items() if name not in others}
    opened.optuna.set_user_attr("plan", former)
    assert len(run_all(Study(storage, "s", dataclasses.replace(first, **others)))) == GRID.total


def test_law_10_a_database_that_cannot_be_opened_is_reported():
    with pytest.raises(ValueError, match=r"flag --storage=no://x: cannot be opened: "):
        study.open_storage("no://x")


@pytest.mark.parametrize("cut", [1, 3, 40])
def test_a_line_of_the_journal_that_was_cut_off_is_removed(tmp_path, cut):
    file = tmp_path / "journal"
    opened = Study(study.open_storage(str(file)), "s", GRID)
    running = opened.next()
    with file.open("a") as journal:
        journal.write('{"op_code":6,"worker_id":"x"'[:-cut] or "{")  # as on a full disk
    opened.end(running, done(), pruned=False, retries=0)
    opened.next()
    os.truncate(file, file.stat().st_size - cut)  # as after a crash
    again = Study(study.open_storage(str(file)), "s", GRID)
    assert len(run_all(again)) == 2
    assert again.trial(running.trial.number).state is TrialState.COMPLETE
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_the_lock_of_a_killed_sweep_that_points_nowhere_is_removed(tmp_path, monkeypatch):
    lock = tmp_path / "journal.lock"
    lock.symlink_to("folder/journal")
    monkeypatch.setattr(study, "_LOCK_SECS", 0.0)
    study.open_storage(str(tmp_path / "journal"))
    assert not lock.is_symlink()


def test_the_lock_of_a_journal_points_to_it_also_if_its_path_is_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    seen = []
    monkeypatch.setattr(study, "_remove_cut_line", lambda file: seen.append(os.path.realpath(lock)))
    lock = tmp_path / "folder" / "journal.lock"
    study.open_storage("folder/journal")
    assert seen == [os.path.realpath("folder/journal")]


@pytest.mark.parametrize(
    "content",
    [b'{"a":1}\n', b"\xff\x00\n", b"text\n", b"[1]\n", b"text", b"x\ny", b'{"a":1}', b'{"op'],
)
def test_law_10_a_file_that_is_no_journal_is_reported_and_left_alone(tmp_path, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    message = rf"^flag --storage={file}: is no Optuna journal, or a damaged one: .+$"
    with pytest.raises(ValueError, match=message):
        study.open_storage(str(file))
    assert file.read_bytes() == content


def test_law_10_a_journal_that_cannot_be_made_or_written_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^flag --storage=.*/no/j: cannot be opened: No such"):
        study.open_storage(str(tmp_path / "no" / "j"))
    storage = study.open_storage(str(tmp_path / "journal"))

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*/journal'$"):
        Study(storage, "s", GRID)


def test_a_heartbeat_survives_a_locked_database(tmp_path, monkeypatch):
    file = tmp_path / "database"
    monkeypatch.setattr(study, "_DATABASE_SECS", 0.0)
    plan = dataclasses.replace(GRID, space={"x": Choices("1")}, total=1)
    opened = Study(study.open_storage(f"sqlite:///{file}"), "s", plan)
    running = opened.next()
    with contextlib.closing(sqlite3.connect(file)) as locking:
        locking.execute("begin exclusive")
        opened.beat()
    opened.end(running, done(), pruned=False, retries=0)
    assert opened.trial(0).state is TrialState.COMPLETE


def test_a_locked_database_is_waited_for():
    with study.open_storage("sqlite://").engine.connect() as connection:
        (milliseconds,) = connection.exec_driver_sql("pragma busy_timeout").one()
    assert milliseconds == 1000 * study._DATABASE_SECS


def test_a_process_is_alive_until_it_ends():
    beat = study.heartbeat()
    assert study.is_alive(beat)
    assert not study.is_alive(dict(beat) | {"birth": "another"})
    assert not study.is_alive(dict(beat) | {"host": "elsewhere", "time": 0.0})
    assert study.is_alive(dict(beat) | {"host": "elsewhere"})
