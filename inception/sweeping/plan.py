"""The plan of a sweep: the trials and their order. Optuna's samplers choose the values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from inception.sweeping import space as spaces
from inception.sweeping.space import Choices, Point, Range, Space

DIRECTIONS = {"precision": "maximize", "bytes": "minimize", "seconds": "minimize"}
PRUNERS = {
    "": optuna.pruners.NopPruner,
    "asha": optuna.pruners.SuccessiveHalvingPruner,
    "median": optuna.pruners.MedianPruner,
}
BANDWIDTH = "bandwidth"  # a name of a space beside the program's flags: that of the launcher
_STARTUP = 10  # random trials before the estimator of `tpe` chooses


@dataclasses.dataclass(frozen=True)
class Plan:
    """The trials of a sweep. All sweeps of a study have the same plan.

    Attributes:
      program: module of the training.
      launcher: module and arguments of what starts several workers; empty for one process.
      arguments: flags that all trainings share.
      space: what the trials differ in.
      method: grid, random or tpe.
      total: number of trials.
      seed: of random draws.
      objectives: one or two of DIRECTIONS.
      pruner: of PRUNERS.
      eval_program: module of the evaluations.
      eval_flags: additional flags of the evaluations.
    """

    program: str
    launcher: Sequence[str]
    arguments: Sequence[str]
    space: Space
    method: str
    total: int
    seed: int
    objectives: Sequence[str]
    pruner: str
    eval_program: str = ""
    eval_flags: Sequence[str] = ()

    @property
    def description(self) -> dict[str, str]:
        """The plan in words, to be compared with that of a study."""
        words = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("launcher", "arguments", "eval_flags"):
            words[name] = " ".join(getattr(self, name))
        words["space"] = " ".join(f"{name}={values}" for name, values in self.space.items())
        words["objectives"] = ", ".join(self.objectives)
        return {name: str(word) for name, word in words.items()}

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The space as Optuna knows it."""
        return {name: _distribution(values) for name, values in self.space.items()}

    @property
    def directions(self) -> list[str]:
        """Whether an objective is maximized or minimized."""
        return [DIRECTIONS[objective] for objective in self.objectives]

    def training(self, point: Point) -> tuple[list[str], list[str]]:
        """Returns what starts the training of a point: the launcher's words, and the flags."""
        chosen = dict(point)
        launcher = list(self.launcher)
        if BANDWIDTH in chosen:
            launcher.insert(1, f"--{BANDWIDTH}={chosen.pop(BANDWIDTH)}")
        return launcher, [*self.arguments, *spaces.arguments(chosen)]

    def sampler(self) -> optuna.samplers.BaseSampler:
        """Returns the sampler of the values of trials that are not queued.

        Several sweeps of a study must not choose the same values, so the sampler has no fixed seed.
        """
        return optuna.samplers.TPESampler(
            n_startup_trials=_STARTUP, multivariate=True, constant_liar=True
        )

    def make_pruner(self) -> optuna.pruners.BasePruner:
        """Returns Optuna's pruner."""
        return PRUNERS[self.pruner]()

    def queued(self) -> list[Mapping[str, Any]]:
        """Returns the values of the trials that do not depend on others: a function of the seed."""
        if self.method == "grid":
            return list(spaces.combinations(self.space))
        random = optuna.create_study(sampler=optuna.samplers.RandomSampler(self.seed))
        count = self.total if self.method == "random" else min(self.total, _STARTUP)
        return [random.ask(self.distributions).params for _ in range(count)]

    def check_same(self, known: Mapping[str, str], study: str) -> None:
        """Raises ValueError, which names the difference, if a study has another plan.

        Studies from before 2026-11-30 do not say how they evaluate.
        """
        for name, word in self.description.items():
            if known.get(name, word) != word:
                raise ValueError(
                    f"study {study} has another {name}: {known[name]} (now {word}); "
                    "choose another --sweep_dir or --study"
                )


def _distribution(values: Choices | Range) -> BaseDistribution:
    if isinstance(values, Choices):
        return CategoricalDistribution(values.texts)
    kind = IntDistribution if isinstance(values.low, int) else FloatDistribution
    return kind(values.low, values.high, log=values.log)


def point_of(params: Mapping[str, Any]) -> Point:
    """Returns the values that Optuna chose as texts."""
    return {name: v if isinstance(v, str) else repr(v) for name, v in params.items()}
