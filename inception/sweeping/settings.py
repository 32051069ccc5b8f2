"""The flags of a sweep."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Sequence
from urllib.parse import quote

from inception.flags.table import (
    BOOLEAN,
    NAMES,
    TEXT,
    Checked,
    Kind,
    at_least,
    flag,
    one_of,
    refuse,
)

_search, _trials, _machines = (
    functools.partial(flag, group) for group in ("Search", "Trials", "Machines")
)
_STUDY = "sweep"
_WORDS = Kind(lambda text: tuple(shlex.split(text)), "flags, quoted as for a shell")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFlags(Checked):
    """The flags of `inception.sweep`."""

    program: str = _search(
        TEXT, "", "training program, such as inception.mnist_train; all trials run it"
    )
    grid: str = _search(
        TEXT, "", "try all combinations of these values: 'NAME=VALUE,VALUE NAME=VALUE,VALUE'"
    )
    space: str = _search(
        TEXT,
        "",
        "for --random and --tpe, as --grid or with ranges: 'NAME=LOW..HIGH NAME=LOW..HIGH:log'",
    )
    random: int = _search(at_least(0), 0, "trials with random values of --space", "trials")
    tpe: int = _search(
        at_least(0),
        0,
        "trials with values of --space that a tree-structured Parzen estimator chooses",
        "trials",
    )
    seed: int = _search(at_least(0), 1, "seed of the random values")
    objective: str = _search(
        one_of("precision", "seconds", "bytes"),
        "precision",
        "what makes a trial the best: precision @ 1, seconds of training, or bytes a step",
    )
    second_objective: str = _search(
        one_of("", "precision", "seconds", "bytes"),
        "",
        "a second objective beside it; the sweep then finds the Pareto front of the two",
    )
    pruner: str = _search(
        one_of("", "asha", "median"),
        "",
        "stop trials whose intermediate evaluations are worse than those of others: asha or median",
    )
    evaluations: int = _search(
        at_least(2),
        5,
        "with --pruner: evaluations of a trial, unless --save_iter is given for the trainings",
        "evaluations",
    )

    eval_program: str = _trials(
        TEXT, "", "evaluates the trainings; not set = the program's own, as mnist_eval"
    )
    eval_flags: tuple[str, ...] = _trials(
        _WORDS, (), "additional flags of the evaluations, such as --num_examples=1000"
    )
    workers: int = _trials(
        at_least(0),
        0,
        "workers of each trial, which inception.launch starts; 0 = each trial is one process",
        "workers",
    )
    ps: int = _trials(
        at_least(0), 0, "parameter servers of each trial, beside --workers", "processes"
    )
    retries: int = _trials(
        at_least(0), 2, "how often a killed or lost trial is tried again", "times"
    )
    retry_failed: bool = _trials(
        BOOLEAN, False, "try failed trials again, for example after missing data were made"
    )
    sweep_dir: str = _trials(
        TEXT, "/tmp/sweep", "folder of the study, a folder for each trial, and the results"
    )
    storage: str = _trials(
        TEXT,
        "",
        "Optuna journal file, or URL of a database such as sqlite:////tmp/s.db; not set = "
        "study.journal in sweep_dir",
    )
    study: str = _trials(
        TEXT,
        _STUDY,
        "name of the study in the storage; results of others than sweep are in study_NAME in "
        "sweep_dir",
    )

    jobs: int = _machines(
        at_least(1),
        1,
        "trials at once on each machine, which share out its cores and GPUs; on Spark: in all",
        "trials",
    )
    hosts: tuple[str, ...] = _machines(
        NAMES,
        (),
        "hosts that run the trials, reached by ssh without a password; not set = this machine",
    )
    spark: str = _machines(
        TEXT,
        "",
        "Spark master whose executors run the trials, such as spark://HOST:7077; --jobs at once",
    )
    workspace: str = _machines(
        TEXT, "", "folder of this repository on hosts and executors; not set = the same as here"
    )
    ssh_config: str = _machines(TEXT, "", "configuration file of ssh; not set = ssh's own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.program:
            raise refuse("program", "", "must name a training program")
        ways = [name for name in ("grid", "random", "tpe") if getattr(self, name)]
        if len(ways) != 1:
            raise ValueError("give one of --grid=VALUES, --random=TRIALS and --tpe=TRIALS")
        if self.grid and self.space:
            raise refuse("space", self.space, "must not be given with --grid, which has the values")
        if self.second_objective == self.objective:
            raise refuse("second_objective", self.second_objective, "must differ from --objective")
        if self.pruner and (self.second_objective or self.objective != "precision"):
            raise refuse("pruner", self.pruner, "needs the one objective precision")
        if self.hosts and self.spark:
            raise refuse("spark", self.spark, "must not be given with --hosts")
        if self.ps and not self.workers:
            raise refuse("ps", self.ps, "needs --workers")

    @property
    def space_flag(self) -> str:
        """The flag that holds the values to try."""
        return "grid" if self.grid else "space"

    @property
    def study_folder(self) -> str:
        """Folder of the study's trials and results within --sweep_dir, which studies may share."""
        return "" if self.study == _STUDY else f"study_{quote(self.study, safe='')}"

    @property
    def method(self) -> str:
        """grid, random or tpe."""
        return next(name for name in ("grid", "random", "tpe") if getattr(self, name))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before and after the first --."""
    words = list(arguments)
    where = words.index("--") if "--" in words else len(words)
    return words[:where], words[where + 1 :]
