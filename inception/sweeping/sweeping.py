"""From the flags of a sweep to its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from optuna.trial import TrialState

from inception.cluster import namespaces
from inception.flags import table
from inception.flags.table import Flag, refuse
from inception.sweeping import places, program, space, spark
from inception.sweeping.places import Place
from inception.sweeping.plan import BANDWIDTH, Plan, point_of
from inception.sweeping.program import TRAIN_DIR, Program
from inception.sweeping.report import FILE, Report
from inception.sweeping.settings import SweepFlags
from inception.sweeping.study import Study, open_storage
from inception.sweeping.sweeper import Commands, Sweeper

_JOURNAL = "study.journal"
_BANDWIDTH = Flag("Machines", namespaces.BANDWIDTH, "see inception.launch")


def sweep(settings: SweepFlags, given: Sequence[str]) -> None:
    """Runs a sweep to its end.

    Args:
      settings: the flags of the sweep.
      given: the flags of all trainings.

    Raises:
      ValueError: a flag does not fit, all machines were lost, or no trial is complete.
    """
    trained = program.of(settings.program, settings.eval_program)
    plan = make_plan(settings, trained, given)
    folder = Path(settings.sweep_dir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse("sweep_dir", settings.sweep_dir, f"cannot be made: {error.strerror}") from None
    study = Study(open_storage(settings.storage or str(folder / _JOURNAL)), settings.study, plan)
    report = Report(study, plan, folder)
    commands = Commands(trained, plan, settings.eval_flags)
    with _places(settings) as found:
        report.begin([place.label for place in found])
        Sweeper(study, commands, folder, settings.retries, report).run(found)
    report.finish()
    check_results(study, folder)


def check_results(study: Study, folder: Path) -> None:
    """Raises ValueError if no trial of a study is complete."""
    results = study.results()
    if not any(trial.state is TrialState.COMPLETE for trial in results):
        raise ValueError(
            f"none of {len(results)} trials is complete; {folder / FILE} has each one's reason"
        )


def make_plan(settings: SweepFlags, trained: Program, given: Sequence[str]) -> Plan:
    """Returns what a sweep tries, after checking all of it that can be checked.

    Raises:
      ValueError: the program would refuse its flags.
    """
    values = trained.check(given)
    if TRAIN_DIR in values and values[TRAIN_DIR].present:
        raise refuse(TRAIN_DIR, values[TRAIN_DIR].value, "each trial has its own in --sweep_dir")
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
    )
    for point in points:
        trained.check(plan.training(point)[1])
    trained.evaluate(given, Path(), settings.eval_flags, follow=bool(settings.pruner))
    _check_effects(settings, trained, plan)
    return plan


def _check_effects(settings: SweepFlags, trained: Program, plan: Plan) -> None:
    """Refuses a name that has no effect in any trial; tells one that has none in some of them."""
    hosts = ["--worker_hosts=127.0.0.1:1"] if settings.workers else []
    hosts += ["--ps_hosts=127.0.0.1:2"] if settings.ps else []
    found = []
    for values in plan.queued():
        with contextlib.suppress(ValueError):  # the trial will fail, and name the reason
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
        session = spark.open_session(settings.spark, settings.workspace)
        try:
            numbers = range(settings.jobs)
            yield [spark.SparkPlace(session, i, settings.workspace) for i in numbers]
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
