"""What the callbacks have in common that keep the processes of `model.fit` together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.keras import agreement, internals, saving, state
from terngrad.library.keras.backup import BackupPlaceholder, BackupSaver, FitState
from terngrad.library.keras.data import compare_data
from terngrad.library.keras.signals import Signals
from terngrad.library.reducer_settings import check_group
from terngrad.training.signals import SIGNALS

END = "the end of an epoch"
_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in (
        "BackupAndRestore",
        "CSVLogger",
        "ModelCheckpoint",
        "OrbaxCheckpoint",
        "ProgbarLogger",
        "RemoteMonitor",
        "TensorBoard",
    )
    if hasattr(keras.callbacks, name)
)
# A loss waits for these, and for those of `chief_only`. Others append to a file, or write to what
# nobody may read.
_CHECKPOINTS = tuple(each for each in _WRITERS if each.__name__.endswith("Checkpoint"))


class FitCallback(keras.callbacks.Callback):
    """The base of `DistributedCallback` and `LocalSteps`, of which a `fit` has one.

    It puts itself behind the other callbacks, and `_Before`, which calls the `before_...` methods,
    before them. Only the chief keeps those that write.
    """

    def __init__(
        self, group: Group, chief_only: Sequence[type[keras.callbacks.Callback]], stops: str
    ) -> None:
        """Keeps these processes together.

        Args:
          group: the processes.
          chief_only: further classes of callbacks that only the chief shall have.
          stops: when a signal stops `fit`, for a line on the terminal.
        """
        super().__init__()
        check_group(type(self).__name__, group)
        kinds = keras.callbacks.Callback
        if not isinstance(chief_only, Sequence) or not all(
            isinstance(kind, type) and issubclass(kind, kinds) for kind in chief_only
        ):
            allowed = "allowed is a list of classes of callbacks"
            raise TypeError(f"{type(self).__name__}: chief_only is {chief_only!r}; {allowed}")
        self._group = group
        self._writers = (*_WRITERS, *chief_only)
        self._awaited = (*_CHECKPOINTS, *chief_only)
        self._writing = saving.WriterLock()
        self._callbacks: list[keras.callbacks.Callback] = []
        self._backup: keras.callbacks.BackupAndRestore | None = None
        self._placeholder: BackupPlaceholder | None = None  # of the chief
        self._state: FitState | None = None
        self._has_steps = False  # whether fit has steps_per_epoch: epochs are no passes over data
        self._is_first_epoch = True  # of this fit
        self._calls = 0  # of the train function in this fit
        self._epoch = 0
        self._batch = 0  # index in the epoch
        self._signals = Signals(stops)

    def before_batch_end(self) -> None:
        """Is called before the other callbacks at the end of a batch."""

    def before_validation(self) -> None:
        """Is called before the other callbacks at the start of a validation."""

    def before_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Is called before the other callbacks at the end of an epoch; `logs` may be changed."""

    def pause(self) -> None:
        """Ends the time limit of a step: callbacks may take any time before the next batch."""
        self._group.progress.batches = None

    def _check_alone(self) -> None:
        """Raises ValueError outside `fit`, or if it has another callback of this kind."""
        own = type(self).__name__
        caller = internals.callback_list()
        if caller is None:
            raise ValueError(f"{own}: give it to fit, fit(..., callbacks=[{own}(group)])")
        for other in caller.callbacks:
            if isinstance(other, FitCallback) and other is not self:
                raise ValueError(
                    f"{own}: beside {type(other).__name__} in the list of callbacks; allowed is "
                    "one of them"
                )

    def _arrange(self, *before_backup: keras.callbacks.Callback) -> bool:
        """Puts callbacks before and after the others; only the chief keeps those that write.

        The chief's backup comes after the other callbacks, which change at an epoch's end.

        Args:
          before_backup: come after the others, and before the backup.

        Returns:
          False in a second call, from the place at the end.
        """
        caller = internals.callback_list()
        if isinstance(caller.callbacks[0], _Before):
            return False
        before = caller.callbacks[: caller.callbacks.index(self)]
        if any(isinstance(c, keras.callbacks.TensorBoard) for c in before):
            raise ValueError(
                f"{type(self).__name__}: put it before TensorBoard in the list of callbacks"
            )
        internals.set_initial_epoch(self.model, None)  # Keras keeps that of an earlier fit's backup
        self._callbacks = [c for c in caller.callbacks if c is not self]
        kinds = keras.callbacks.BackupAndRestore
        self._backup = next((c for c in self._callbacks if isinstance(c, kinds)), None)
        if not self._group.is_chief:
            # Keras goes through the list at this moment, so that its length counts.
            idle = keras.callbacks.Callback()
            self._callbacks = [idle if isinstance(c, self._writers) else c for c in self._callbacks]
        others = [c for c in self._callbacks if c is not self._backup]
        self._state = FitState(self.model, others, self._backup)
        self._placeholder, arranged, saver = None, self._callbacks, []
        if self._backup in self._callbacks:
            self._placeholder = BackupPlaceholder(self._backup)
            arranged = [self._placeholder if c is self._backup else c for c in self._callbacks]
            saver = [BackupSaver(self._backup, self._state.save)]
        if self._group.size > 1 and self._group.is_chief:
            lock = self._writing = saving.WriterLock()
            arranged = [
                saving.Writer(c, lock) if isinstance(c, self._awaited) else c for c in arranged
            ]
            saver = [saving.Writer(c, lock) for c in saver]
        caller.callbacks[:] = [_Before(self), *arranged, *before_backup, *saver, self]
        return True

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        """Returns the optimizers of the model that the processes compare."""
        raise NotImplementedError

    def _act_at_losses(self) -> None:
        """Lets a loss that ends this process wait for the callbacks that write."""
        act = lambda: self._writing.at_end(self._save_at_loss)
        self._group.at_loss[:] = [act] if self._group.is_chief else []

    def _save_at_loss(self) -> str:
        """Saves where a loss ends this process, if it can; returns a text for its last line."""
        has_some = any(isinstance(c, _CHECKPOINTS) for c in self._callbacks)
        return "not saved since the last checkpoint" if has_some else ""

    def _begin_fit(self) -> None:
        self._calls, self._is_first_epoch = 0, True
        self._group.leaving.stopped_by = None
        self.pause()

    def _agree(self, given: Mapping[str, Any]) -> None:
        """Compares models, settings and the data that `fit` was given; see on_train_begin."""
        agreement.agree_on_model(self._group, self.model, self._optimizers(), self.params)
        shared = [c for c in self._callbacks if not isinstance(c, self._writers)]
        agreement.agree_on_callbacks(self._group, self.model, shared)
        compare_data(self._group, given)

    def _copy_state(self) -> None:
        """Copies the chief's weights, optimizer state and first epoch to all."""
        variables = [*self.model.weights]
        for optimizer in self._optimizers():
            variables += optimizer.variables if optimizer.built else []
        self._group.broadcast(list({id(plain(v)): v for v in variables}.values()))
        state.refresh(self.model)
        epochs = self._group.all_gather_object(internals.initial_epoch(self.model))
        internals.set_initial_epoch(self.model, epochs[0])

    def _begin_epochs(self, fit: internals.FitCall) -> None:
        """Lets data that are shuffled anew in each epoch begin with the first one of `fit`."""
        self._has_steps = fit.arguments.get("steps_per_epoch") is not None
        first = internals.initial_epoch(self.model) or fit.arguments.get("initial_epoch")
        self._group.set_epoch(first or 0)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch, and compares the learning rates of the first one."""
        self._epoch = epoch
        if not self._has_steps:
            self._group.set_epoch(epoch)
        if self._is_first_epoch and self._group.size > 1 and not self._group.is_elastic:
            agreement.agree_on_rates(self._group, self._optimizers())
        self._is_first_epoch = False

    def _share_metrics(self, logs: dict[str, Any], **row: Any) -> list[dict[str, Any]]:
        """Replaces an epoch's metrics by the means of all processes; returns the rows of all."""
        self._group.progress.batches = self._calls or None
        rows = self._group.all_gather_object({"logs": plain_numbers(logs), **row}, what=END)
        self.pause()
        logs.update(means([row["logs"] for row in rows]))
        return rows

    def _digests(self) -> set[int]:
        """Returns the digests of the weights of all processes at the end of `fit`."""
        own = state.digest(self.model)
        return set(self._group.all_gather_object(own, what="the end of fit"))

    def _raise_if(
        self, signals: Sequence[float], logs: dict | None, *, is_epoch_over: bool = False
    ) -> None:
        """Ends `fit` where a process was sent a signal, the same way on all."""
        if not any(signals):
            return
        number = next(n for n, said in zip(SIGNALS, signals, strict=True) if said)
        self._signals.leave(forget=True)
        self.pause()
        with self._writing:
            saving.save(
                self._callbacks, self._epoch, self._batch, logs or {}, is_epoch_over=is_epoch_over
            )
        self._group.at_loss.clear()
        if number != signal.SIGINT:
            raise SystemExit(128 + number)
        why = "a worker was interrupted; all stopped after the same step"
        self._group.leaving.stopped_by = KeyboardInterrupt(why)
        raise self._group.leaving.stopped_by

    def _delete_beside_backup(self, what: str) -> None:
        """Deletes what each process, and the chief, has saved beside the backup.

        Args:
          what: the end of the name of the folder that has one for each process.
        """
        folder = f"{self._backup.backup_dir}-{what}"
        shutil.rmtree(f"{folder}/{self._group.rank}", ignore_errors=True)
        with contextlib.suppress(OSError):  # it has files of others, or does not exist
            os.rmdir(folder)
        if self._group.is_chief:
            self._state.delete()


class _Before(keras.callbacks.Callback):
    """The part of a FitCallback that comes before the other callbacks."""

    def __init__(self, callback: FitCallback) -> None:
        super().__init__()
        self._callback = callback

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._callback.before_batch_end()

    def on_test_begin(self, logs: dict | None = None) -> None:
        self._callback.before_validation()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._callback.before_epoch_end(epoch, logs if logs is not None else {})


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each metric over the processes that have it."""
    names = sorted({name for row in rows for name in row})
    return {name: _mean([row[name] for row in rows if name in row]) for name in names}


def plain_numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metrics as numbers, or lists of these, which processes can exchange."""
    return {name: np.asarray(value).tolist() for name, value in logs.items()}


def _mean(values: Sequence[Any]) -> Any:
    """Returns the mean of numbers, or of arrays of numbers; else the first value."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return values[0]
    mean = array.mean(axis=0)
    return float(mean) if mean.ndim == 0 else mean
