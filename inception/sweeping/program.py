"""A training program as a sweep sees it: its flags, and the program that evaluates its runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from absl import flags
from absl.flags import FlagValues

from inception import app
from inception.flags import command_line, table, tf_slim
from inception.flags.command_line import flags_of
from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from terngrad.cluster.managed.role import LAUNCHED

TRAIN_DIR = "train_dir"
# Flags that both programs have, but each with a meaning or for a purpose of its own.
_NOT_SHARED = {
    "batch_size",
    "checkpoint_path",
    "dataset_split_name",
    "max_steps",
    "num_inter_threads",
    "num_intra_threads",
    "subset",
}
_EVALUATORS = {
    "inception.distributed_train": "inception.evaluate",
    "inception.train": "inception.evaluate",
    "slim.train_image_classifier": "slim.eval_image_classifier",
}
_POLL_SECS = 1.0  # for a new checkpoint


@dataclasses.dataclass(frozen=True)
class Program:
    """A training program and its evaluator.

    Attributes:
      module: the program.
      evaluator: the program that evaluates its checkpoints.
    """

    module: str
    evaluator: str

    def check(self, arguments: Sequence[str]) -> FlagValues:
        """Returns the parsed flags.

        Raises:
          ValueError: the program would refuse them.
        """
        values = flags_of(self.module)
        app.parse(values, arguments)
        if reader := _reader(values):
            reader.read_train(values)
        return values

    def needs_workers(self, values: FlagValues) -> bool:
        """Whether trainings with these flags are not one process, so a launcher has to start them.

        slim's program trains alone without a launcher.
        """
        if "job_name" not in values or _reader(values) is tf_slim:
            return False
        return not (
            values.worker_hosts or values.cluster == "auto" or values.variable_update in LAUNCHED
        )

    def inert(self, arguments: Sequence[str], launched: Sequence[str]) -> dict[str, str]:
        """Returns the flags that have no effect beside the others, with the reason.

        Args:
          arguments: of the training.
          launched: flags that its launcher adds.

        Raises:
          ValueError: the program would refuse them.
        """
        values = self.check([*arguments, *launched])
        reader = _reader(values)
        return reader.inert(values) if reader else {}

    def train(self, arguments: Sequence[str], folder: Path) -> list[str]:
        """Returns module and arguments of a training in a folder."""
        return [self.module, *arguments, f"--{TRAIN_DIR}={folder / 'train'}"]

    def last_step(self, arguments: Sequence[str]) -> int:
        """Returns the step at which a training ends.

        Raises:
          ValueError: its flags do not say so.
        """
        return _steps(self.check(arguments))

    def evaluate(
        self, arguments: Sequence[str], folder: Path, extra: Sequence[str], follow: bool
    ) -> list[str]:
        """Returns module and arguments of the evaluation of a training.

        Args:
          arguments: those of the training.
          folder: the folder that `train` was given.
          extra: more flags of the evaluator.
          follow: evaluate also the checkpoints that a running training makes; otherwise once.

        Raises:
          ValueError: the evaluator would refuse them.
        """
        values, known = self.check(arguments), flags_of(self.evaluator)
        shared = [name for name in values if name in known and name not in _NOT_SHARED]
        chosen = {name: values[name].value for name in shared if values[name].present}
        place = "checkpoint_dir" if "checkpoint_dir" in known else "checkpoint_path"
        chosen |= {place: folder / "train", "eval_dir": folder / "eval", "run_once": not follow}
        if "train_image_size" in values and values["train_image_size"].present:
            chosen["eval_image_size"] = values["train_image_size"].value
        if "restore_avg_var" in known and not values["moving_average_decay"].value:
            chosen["restore_avg_var"] = False
        if follow:
            chosen |= {"eval_interval_secs": _POLL_SECS, "max_steps": _steps(values)}
        words = [*(f"--{n}={value}" for n, value in chosen.items()), *extra]
        try:
            app.parse(known, words)
        except (ValueError, flags.Error) as error:
            raise refuse("eval_flags", extra, f"{self.evaluator}: {error}") from None
        return [self.evaluator, *words]


def _reader(values: FlagValues) -> ModuleType | None:
    """Returns the module that reads a training's flags; None for a program with its own flags."""
    if "model_name" in values:
        return tf_slim
    return command_line if all(name in values for name in table.table(TrainConfig)) else None


def find_program(module: str, evaluator: str) -> Program:
    """Returns a program; without `evaluator` that of its name (mnist_train: mnist_eval).

    Raises:
      ValueError: there is no such program, or it does not train or evaluate.
    """
    stem = module.removesuffix("_train").removesuffix("_distributed")
    found = Program(module, evaluator or _EVALUATORS.get(module, f"{stem}_eval"))
    _require("program", module, (TRAIN_DIR,))
    _require("eval_program", found.evaluator, ("run_once", "eval_dir"))
    return found


def _require(flag: str, module: str, names: Sequence[str]) -> None:
    """Raises ValueError if a program cannot be used as `flag` says."""
    try:
        values = flags_of(module)
    except ValueError as error:
        raise refuse(flag, module, str(error)) from None
    for name in names:
        if name not in values:
            raise refuse(flag, module, f"that program has no flag --{name}")


def checkpoints_at(values: FlagValues, evaluations: int) -> list[str]:
    """Returns the flags that let a training save so many times, unless it says when to save."""
    if "save_iter" not in values or values["save_iter"].present:  # without it: by time
        return []
    return [f"--save_iter={math.ceil(_steps(values) / evaluations)}"]


def _steps(values: Mapping) -> int:
    name = "max_steps" if "max_steps" in values else "max_number_of_steps"
    if values[name].value is None:
        raise ValueError(f"--pruner needs --{name} among the flags of the training")
    return values[name].value
