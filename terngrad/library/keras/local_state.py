"""What each worker of `terngrad.keras.LocalSteps` saves beside a backup of BackupAndRestore."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.keras import program_warnings, state
from terngrad.library.local_steps import LocalSteps
from terngrad.training import checkpoints
from terngrad.training.errors import NotFiniteError

_KEPT = 2  # checkpoints: the backup may be the older one


class LocalState:
    """A worker's optimizers, the outer optimizer and the codecs' memory at the end of an epoch."""

    def __init__(
        self,
        model: keras.Model,
        local: LocalSteps,
        optimizers: Sequence[keras.optimizers.Optimizer],
        folder: str,
    ) -> None:
        """Saves to a folder of this worker; "" = saves nothing."""
        self._model, self._local, self._optimizers = model, local, optimizers
        self._folder = folder

    def save(self, epoch: int) -> None:
        """Writes the state at the start of an epoch, when all weights are shared."""
        if not self._folder:
            return
        os.makedirs(self._folder, exist_ok=True)
        try:
            checkpoints.save(self._folder, self._variables(), epoch, _KEPT, self._weights())
        except NotFiniteError as error:
            program_warnings.warn(f"{self._folder}: {error}")

    def restore(self, epoch: int) -> str:
        """Reads the state at the start of an epoch; returns why it cannot, or ""."""
        if not self._folder:
            return "it has no BackupAndRestore"
        path = checkpoints.at_step(self._folder, epoch)
        if path is None:
            return f"{self._folder} has nothing of epoch {epoch}"
        if why := checkpoints.damage(path):  # else a part of it would be restored
            return f"{path} is damaged: {why}"
        try:
            if checkpoints.settings_of(path) != self._weights():
                return f"{path} belongs to other weights than those of the backup"
            checkpoints.restore(path, self._variables())
        except ValueError as error:
            return str(error)
        return ""

    def share(self, group: Group) -> None:
        """Copies the chief's state of the outer optimizer to all, which must have the same."""
        outer = self._local.state
        group.broadcast([*outer.shared, *outer.velocities, *(each.step for each in outer.reducers)])

    def _weights(self) -> str:
        """Returns what a checkpoint says of the weights that it belongs to."""
        return f"weights {state.digest(self._model):08x}"

    def _variables(self) -> dict[str, tf.Variable]:
        """Returns the variables by name, without the model's weights, which the backup has."""
        outer, found = self._local.state, {}
        for kind, variables in (("shared", outer.shared), ("velocities", outer.velocities)):
            found |= {f"{kind}/{i}": variable for i, variable in enumerate(variables)}
        for i, reducer in enumerate(outer.reducers):
            found[f"exchanges/{i}"] = reducer.step
            found |= {f"codecs/{i}/{name}": each for name, each in reducer.memory.items()}
        for i, optimizer in enumerate(self._optimizers):
            own = optimizer.variables if optimizer.built else []
            found |= {f"optimizers/{i}/{j}": plain(variable) for j, variable in enumerate(own)}
        return found
