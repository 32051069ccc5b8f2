"""Runs a sweep, from its flags to its end: a `Sweeper` gives the trials of a study to places."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from absl import flags
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from inception import app
from inception.cluster import namespaces
from inception.flags import table
from inception.flags.table import Flag, refuse
from inception.sweeping import places, program, space
from inception.sweeping.messages import Outcome, TrialEnd, TrialSpec
from inception.sweeping.places import Place, TrialConnection
from inception.sweeping.plan import BANDWIDTH, Plan, point_of
from inception.sweeping.program import TRAIN_DIR, Program
from inception.sweeping.report import FILE, Report
from inception.sweeping.settings import SweepFlags
from inception.sweeping.study import BEAT_SECS, RunningTrial, Study, open_storage

_JOURNAL = "study.journal"
_BANDWIDTH = Flag("Machines", namespaces.BANDWIDTH, "see inception.launch")
_POLL_SECS = 1.0  # for a trial to run
_END_POLL_SECS = 0.1  # for the ends of the threads that run trials
_LOSSES = 2  # a place that lost so many trials in a row is not used any more


def sweep(settings: SweepFlags, given: Sequence[str]) -> None:
    """Runs a sweep to its end.

    Args:
      settings: the flags of the sweep.
      given: the flags of all trainings.

    Raises:
      ValueError: a flag does not fit, all machines were lost, or no trial is complete.
    """
    trained = program.find_program(settings.program, settings.eval_program)
    plan = make_plan(settings, trained, given)
    folder = Path(settings.sweep_dir).absolute()
    results = folder / settings.study_folder
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse("sweep_dir", settings.sweep_dir, f"cannot be made: {error.strerror}") from None
    place = settings.storage or str(folder / _JOURNAL)
    with _naming_storage(place):
        study = Study(open_storage(place), settings.study, plan, settings.study_folder)
        if settings.retry_failed:
            study.retry_failed()
        report = Report(study, plan, results)
        commands = Commands(trained, plan)
        with _places(settings) as found:
            report.begin([place.label for place in found])
            running = Sweeper(study, commands, folder, settings.retries, report)
            with app.reporting_stop("the trainings saved; the same command goes on."):
                running.run(found)
        report.finish()
    _check_results(study, results)


@contextlib.contextmanager
def _naming_storage(place: str) -> Iterator[None]:
    """Turns an error of the study's database within the block into one that names it."""
    try:
        yield
    except StorageInternalError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise refuse("storage", place, f"{reason}; the same command goes on") from error


def _check_results(study: Study, folder: Path) -> None:
    """Raises ValueError if no trial of a study is complete."""
    results = study.results()
    if not any(trial.state is TrialState.COMPLETE for trial in results):
        raise ValueError(
            f"none of {len(results)} trials is complete; {folder / FILE} has each one's reason; "
            "--retry_failed tries failed trials again"
        )


def make_plan(settings: SweepFlags, trained: Program, given: Sequence[str]) -> Plan:
    """Returns what a sweep tries, after checking all of it that can be checked.

    Raises:
      ValueError: the program would refuse its flags.
    """
    values = trained.check(given)
    if TRAIN_DIR in values and values[TRAIN_DIR].present:
        raise refuse(TRAIN_DIR, values[TRAIN_DIR].value, "each trial has its own in --sweep_dir")
    if settings.workers and "worker_hosts" not in values:
        why = f"must be 0: {settings.program} trains in one process"
        raise refuse("workers", settings.workers, why)
    if not settings.workers and trained.needs_workers(values):
        raise refuse("workers", 0, f"must be at least 1 for {settings.program}")
    if settings.pruner:
        given = [*given, *program.checkpoints_at(values, settings.evaluations)]
    if settings.workers:
        table.define_one(BANDWIDTH, _BANDWIDTH, None, values)
    name = settings.space_flag
    chosen = space.read(getattr(settings, name), values, name)
    if settings.grid and (ranges := space.ranges(chosen)):
        raise refuse("grid", settings.grid, f"{ranges[0]} has a range; a grid needs its values")
    if BANDWIDTH in chosen and not settings.hosts and os.geteuid():
        raise refuse(name, getattr(settings, name), f"only root may set {BANDWIDTH}")
    points = list(space.combinations(chosen)) if settings.grid else []
    second = [settings.second_objective] if settings.second_objective else []
    plan = Plan(
        settings.program,
        _launcher(settings),
        given,
        chosen,
        settings.method,
        settings.random or settings.tpe or len(points),
        settings.seed,
        [settings.objective, *second],
        settings.pruner,
        trained.evaluator,
        settings.eval_flags,
    )
    for point in points:
        trained.check(plan.training(point)[1])
    trained.evaluate(given, Path(), settings.eval_flags, follow=bool(settings.pruner))
    _check_effects(settings, trained, plan)
    return plan


@dataclasses.dataclass(frozen=True)
class Commands:
    """The commands of a sweep's trials.

    Attributes:
      program: trains and evaluates.
      plan: what all trainings and their evaluations share.
    """

    program: Program
    plan: Plan

    def spec(self, running: RunningTrial, folder: Path, place: Place) -> TrialSpec:
        """Returns the specification of a trial in a folder at a place."""
        launcher, chosen = self.plan.training(running.point)
        follow = bool(self.plan.pruner)
        return TrialSpec(
            str(folder),
            [*launcher, *self.program.train(chosen, folder)],
            self.program.evaluate(chosen, folder, self.plan.eval_flags, follow),
            follow,
            place.slot,
            place.slots,
        )

    def is_finished(self, running: RunningTrial, step: int) -> bool:
        """Whether the training of a trial has ended with a step. Only where a pruner follows it."""
        return step >= self.program.last_step(self.plan.training(running.point)[1])


class Sweeper:
    """Gives the trials of a study to places until all have ended."""

    def __init__(
        self, study: Study, commands: Commands, folder: Path, retries: int, report: Report
    ) -> None:
        """Starts nothing yet.

        Args:
          study: says what to run.
          commands: say how.
          folder: holds the trials' folders.
          retries: how often a trial that died is tried again.
          report: gets what happens.
        """
        self._study, self._commands, self._folder = study, commands, folder
        self._retries, self._report = retries, report
        self._stop = threading.Event()
        self._begun: list[Place] = []  # where trials are run
        self._ended: list[Place] = []  # where no more are
        self._connections: set[TrialConnection] = set()
        self._problems: list[BaseException] = []

    def run(self, places: Sequence[Place]) -> None:
        """Runs trials until none is left.

        What a signal raises ends the trainings, which save, and the block.

        Raises:
          ValueError: no place is left.
        """
        with self._beating():
            try:
                for place in places:
                    threading.Thread(target=self._work, args=(place,)).start()
                _wait_until(lambda: len(self._ended) == len(places))
            finally:
                self._stop_trials()
                _wait_until(lambda: len(self._ended) == len(self._begun))
        if self._problems:
            raise self._problems[0]
        if not self._study.is_over():
            raise ValueError("no machine is left to run trials; the same command goes on")

    def _stop_trials(self) -> None:
        self._stop.set()
        for connection in list(self._connections):
            connection.stop()

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Sends heartbeats within the block."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(BEAT_SECS):
                self._study.beat()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _work(self, place: Place) -> None:
        """Runs trials at a place until none is left, or the place is lost."""
        losses = 0
        self._begun.append(place)
        try:
            while not self._stop.is_set() and losses < _LOSSES:
                running = self._study.next()
                if running:
                    losses = losses + 1 if self._run(place, running) is Outcome.LOST else 0
                elif self._study.is_over():
                    return
                else:
                    self._stop.wait(_POLL_SECS)
        except Exception as error:  # raised by the main thread, after the others have saved
            self._problems.append(error)
            self._stop_trials()
        finally:
            if losses == _LOSSES:
                self._report.lost(place.label)
            self._ended.append(place)

    def _run(self, place: Place, running: RunningTrial) -> Outcome:
        try:
            spec = self._commands.spec(running, self._folder / running.folder, place)
        except (ValueError, flags.Error) as error:  # a random point that the program refuses
            end, pruned = TrialEnd(Outcome.FAILED, str(error)), False
        else:
            end, pruned = self._follow(place, running, spec)
        again = self._study.end(running, end, pruned, self._retries)
        self._report.ended(running, place.label, again)
        return end.outcome

    def _follow(
        self, place: Place, running: RunningTrial, spec: TrialSpec
    ) -> tuple[TrialEnd, bool]:
        """Runs a trial at a place; returns its end, and whether it was pruned."""
        end, pruned = TrialEnd(Outcome.LOST), False
        with place.start(spec) as connection:
            self._connections.add(connection)
            if self._stop.is_set():
                connection.stop()
            for event in connection.events():
                if isinstance(event, TrialEnd):
                    end = event
                elif not pruned and self._study.report(running, event):
                    # The last evaluation has no training to stop.
                    pruned = not self._commands.is_finished(running, event.step)
                    if pruned:
                        connection.stop()
            self._connections.discard(connection)
        return end, pruned


def _wait_until(is_true: Callable[[], bool]) -> None:
    """Waits in the main thread, where a signal may raise.

    In Python up to 3.12 an exception within `Thread.join` marks the thread as ended while it runs.
    """
    while not is_true():
        time.sleep(_END_POLL_SECS)


def _check_effects(settings: SweepFlags, trained: Program, plan: Plan) -> None:
    """Refuses a name that has no effect in any trial; prints one that has none in some of them."""
    hosts = ["--worker_hosts=127.0.0.1:1"] if settings.workers else []
    hosts += ["--ps_hosts=127.0.0.1:2"] if settings.ps else []
    found = []
    for values in plan.queued():
        with contextlib.suppress(ValueError, flags.Error):  # the trial will fail and say why
            found.append(trained.inert(plan.training(point_of(values))[1], hosts))
    for name, values in plan.space.items():
        reasons = [inert[name] for inert in found if name in inert]
        if not reasons:
            continue
        why = f"with {', or '.join(dict.fromkeys(reasons))}"
        if len(reasons) == len(found) == plan.total:
            raise refuse(
                settings.space_flag, f"{name}={values}", f"has no effect in any trial, {why}"
            )
        first = "the first " if len(found) < plan.total else ""
        print(f"--{name}: has no effect in {len(reasons)} of {first}{len(found)} trials, {why}.")


def _launcher(settings: SweepFlags) -> list[str]:
    if not settings.workers:
        return []
    options = [f"--max_restarts={settings.retries}", *([f"--ps={settings.ps}"] * bool(settings.ps))]
    return ["inception.launch", *options, str(settings.workers)]


@contextlib.contextmanager
def _places(settings: SweepFlags) -> Iterator[list[Place]]:
    """Yields where trials run, after checking that they can."""
    if settings.spark:
        session = places.open_session(settings.spark, settings.workspace)
        try:
            numbers = range(settings.jobs)
            yield [places.SparkPlace(session, i, settings.workspace) for i in numbers]
        finally:
            session.stop()
    elif settings.hosts:
        hosts, jobs = settings.hosts, settings.jobs
        found = places.on_hosts(hosts, jobs, settings.workspace, settings.ssh_config)
        for place in found[: len(hosts)]:  # one of each host
            place.check()
        yield found
    else:
        yield places.on_this_machine(settings.jobs)
