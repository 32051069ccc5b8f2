"""Keras' `fit` with local steps: `terngrad.keras.LocalSteps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.library import local_steps
from terngrad.library.group import Group
from terngrad.library.keras import internals, program_warnings, state
from terngrad.library.keras.fit_callback import END, FitCallback
from terngrad.library.keras.local_state import LocalState
from terngrad.library.keras.optimizer import (
    bits_per_parameter,
    exchange_of,
    optimizers_of,
    with_inner_optimizers,
)
from terngrad.training.signals import SIGNALS

_NAME = "LocalSteps"


class LocalSteps(FitCallback):
    """Trains with local steps in `model.fit`, as `terngrad.LocalSteps` does in a custom loop.

        group = terngrad.join()
        model.compile(keras.optimizers.Adam(1e-3), loss)  # not distributed
        model.fit(group.shard(data).batch(32), callbacks=[terngrad.keras.LocalSteps(group)])

    Each process makes `steps` steps of its own optimizer, then the changes are exchanged.

    - At the start, also after a BackupAndRestore, all take the chief's weights, optimizer state and
      what its callbacks remember. Settings of the model and callbacks, and the data, are compared.
    - Each exchange averages moving statistics, such as those of batch normalization.
    - Random layers, such as dropout, draw for each process: its rank is mixed into the chief's
      seed.
    - An epoch ends with an exchange of all weights, before its validation. All processes need
      equally many batches.
    - At the end of an epoch, the other callbacks see the mean metrics of all processes, also of
      `bytes_sent` (of deltas, so far) and `bits_per_parameter` (of an exchange).
    - When a callback stops the training of one process, all stop after the next exchange. So they
      do at SIGINT (Ctrl-C), SIGTERM and SIGHUP: the chief's ModelCheckpoints save, except those of
      the best, and `fit` raises KeyboardInterrupt or SystemExit on all.
    - Only the chief writes, as with `DistributedCallback`. But each process saves what it alone
      has, beside the backup of a BackupAndRestore.

    Its place among the callbacks does not matter, but it must come before a TensorBoard, which
    begins to write at once.
    """

    def __init__(
        self,
        group: Group,
        steps: int = 16,
        chief_only: Sequence[type[keras.callbacks.Callback]] = (),
        **settings: Any,
    ) -> None:
        """Checks the arguments.

        Args:
          group: the processes, from `terngrad.join`; not an elastic one.
          steps: a process' own steps between two exchanges of a variable.
          chief_only: further classes of callbacks that only the chief shall have.
          settings: further arguments of `terngrad.LocalSteps`, such as `fragments`, `overlap`,
            `learning_rate`, `momentum` and `gradients`; all but `averaged`.

        Raises:
          TypeError: an argument has another type.
          ValueError: an argument or the group is wrong.
          MembershipError: the group is closed.
        """
        super().__init__(group, chief_only, "the next exchange")
        group.check_open()
        if "averaged" in settings:
            raise TypeError(f"averaged is no argument of {_NAME}: fit averages moving statistics")
        local_steps.check_arguments(group, steps=steps, **settings)
        self._settings = {"steps": steps, **settings}
        self._steps = steps // settings.get("fragments", 1)  # between two exchanges
        is_whole = settings.get("fragments", 1) == 1 and not settings.get("overlap", False)
        self._is_whole = is_whole  # whether all weights are equal after each exchange
        self._local: local_steps.LocalSteps | None = None
        self._own: LocalState | None = None  # of this fit
        self._has_backup = False  # of the chief
        self._requests: tf.Variable | None = None  # to stop, and by signals; their means thereafter
        self._of_all = [False] * (1 + len(SIGNALS))  # what processes requested, after an exchange
        self._wants_stop = False
        self._made = 0  # steps of this epoch
        self._is_equal = True  # whether all processes have the same weights
        self._is_in_epoch = False

    def set_model(self, model: keras.Model) -> None:
        """Checks the model's optimizers, and puts this callback after the others.

        Raises:
          ValueError: an optimizer cannot make local steps, `steps_per_execution` does not suit, or
            another callback.
        """
        super().set_model(model)
        self._check_alone()
        for optimizer in self._optimizers():
            for part in with_inner_optimizers(optimizer):
                _check_optimizer(part)
        at_once = model.steps_per_execution
        if self._steps % at_once:
            raise ValueError(
                f"{_NAME}: steps_per_execution is {at_once}; allowed are divisors of steps / "
                f"fragments, {self._steps}"
            )
        self._arrange(_BeforeBackup(self))

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Compares the workers' models and settings; all take the chief's state.

        Raises:
          ValueError: the model has layers without weights.
          MembershipError: names what differs.
        """
        del logs
        group, model, fit = self._group, self.model, internals.fit_call()
        _check_built(model)
        self._begin_fit()
        self._wants_stop = False
        if group.size > 1:
            self._agree(fit.arguments)
            self._copy_state()
        epoch = self._placeholder.epoch if self._placeholder else None
        self._state.restore(group, epoch)
        if group.size > 1:
            state.share_seeds(model, group, nodes=1)
        self._requests = tf.Variable(tf.zeros(1 + len(SIGNALS)), trainable=False)
        averaged = [*state.moving_statistics(model), self._requests]
        self._local = local_steps.LocalSteps(
            model.trainable_variables, group, averaged=averaged, **self._settings
        )
        backup = f"{self._backup.backup_dir}-local/{group.rank}" if self._backup else ""
        self._own = LocalState(model, self._local, self._optimizers(), backup)
        own = [self._placeholder is not None, epoch]
        self._has_backup, epoch = group.all_gather_object(own, what="the start of fit")[0]
        if epoch is not None:
            if why := self._own.restore(epoch):
                program_warnings.warn(
                    f"{group.label} goes on with the optimizer of worker 0, and with codecs and an "
                    f"outer momentum that begin anew: {why}"
                )
            self._own.share(group)
        self._begin_epochs(fit)
        if group.size > 1:
            self._act_at_losses()
            self._signals.catch(fit.code)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """See base class."""
        super().on_epoch_begin(epoch, logs)
        self._made, self._is_in_epoch = 0, True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Reports the progress of this process, so that one without a next batch is named."""
        if self._calls:  # the first one compiles, which may take any time
            self._group.progress.batches = self._calls + 1

    def before_batch_end(self) -> None:
        """Counts the steps of a call, and exchanges if it is time."""
        self._calls += 1
        self._requests.assign([float(self._wants_stop), *self._signals.seen()])
        exchanged = False
        for _ in range(self.model.steps_per_execution):  # only the last one may exchange
            exchanged = self._local.step()
            self._made += 1
        self._is_equal = exchanged and self._is_whole
        found = self._requests.numpy() if exchanged else np.zeros(1 + len(SIGNALS))
        self._of_all = (found > 0).tolist()
        self.pause()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops all if the last exchange carried a request; a new one waits for the next."""
        self._batch = batch
        stop, *signals = self._of_all
        if any(signals):
            self._equalize()
        self._raise_if(signals, logs)
        self._wants_stop = self._wants_stop or bool(self.model.stop_training)
        self.model.stop_training = stop

    def before_validation(self) -> None:
        """Ends the steps of an epoch."""
        self._end_steps()

    def before_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Ends the steps of an epoch, and replaces its metrics by the means of all processes."""
        self._end_steps()
        logs["bytes_sent"] = self._local.bytes_sent
        logs["bits_per_parameter"] = bits_per_parameter(self._local.reducers)
        if self._group.size > 1:
            self._share_metrics(logs)

    def save(self, epoch: int) -> None:
        """Saves what this process alone has; returns when all have done so."""
        self._own.save(epoch)
        if self._has_backup:  # the chief's must not be newer than a worker's own
            self._group.barrier()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops all if one process is to stop."""
        wants = self._wants_stop or self.model.stop_training
        own = np.array([wants, *self._signals.seen()], np.float32)
        stop, *signals = self._group.all_gather(own, what=END).max(axis=0)
        self._raise_if(signals, logs, is_epoch_over=True)
        self.model.stop_training = bool(stop)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Compares weights, restores the program's signal handlers, and deletes what was saved.

        It deletes that where Keras deletes backups.
        """
        del logs
        self._group.at_loss.clear()
        try:  # callbacks may have changed them after the last exchange
            if len(self._digests()) > 1:
                if self._group.is_chief:
                    program_warnings.warn(
                        "the workers' weights differ at the end of fit: something changes them on "
                        "each worker alone; all take the chief's"
                    )
                self._group.broadcast(self.model.weights)
                state.refresh(self.model)
        finally:  # a delayed signal is handled now, when no other worker waits
            self._signals.leave()
        if self._backup and self._backup.delete_checkpoint:
            self._delete_beside_backup("local")

    def _end_steps(self) -> None:
        """Compares the batches of an epoch, once, and gives all processes the same weights."""
        if not self._is_in_epoch:
            return
        self._is_in_epoch = False
        self._group.progress.batches = self._calls or None
        if self._group.size > 1:
            made = {"batches of an epoch (use group.shard)": str(self._made)}
            self._group.agree(made, END)
        self._equalize()
        self.pause()

    def _equalize(self) -> None:
        if not self._is_equal:
            self._local.exchange()
        self._is_equal = True

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        """See base class."""
        return [optimizer for _, optimizer in optimizers_of(self.model)]


class _BeforeBackup(keras.callbacks.Callback):
    """The part of LocalSteps between the other callbacks and the chief's backup."""

    def __init__(self, callback: LocalSteps) -> None:
        super().__init__()
        self._callback = callback

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._callback.save(epoch + 1)


def _check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    kind = internals.own_class(optimizer).__name__
    if exchange_of(optimizer) is not None:
        raise ValueError(
            f"{_NAME}: the optimizer {kind} is distributed, so that it exchanges gradients in each "
            "step; allowed is a plain one, without terngrad.keras.distribute"
        )
    if optimizer.use_ema:
        raise ValueError(
            f"{_NAME}: {kind} has use_ema=True, which averages the weights of each worker alone; "
            "allowed is False"
        )


def _check_built(model: keras.Model) -> None:
    unbuilt = [layer.name for layer in internals.layers_of(model) if not layer.built]
    if unbuilt or not model.trainable_variables:
        what = f"{unbuilt[0]} is not built" if unbuilt else "the model has no weights to train"
        raise ValueError(
            f"{_NAME}: {what} before the first batch; build the model before fit: with a "
            "keras.Input as its first layer, or model.build(shape)"
        )
