"""The callback that keeps the processes of `model.fit` together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import keras
import numpy as np

from terngrad.library.group import Group
from terngrad.library.keras import (
    agreement,
    elastic,
    internals,
    program_warnings,
    saving,
    state,
)
from terngrad.library.keras.elastic_step import ElasticStep
from terngrad.library.keras.fit_callback import END, FitCallback, means, plain_numbers
from terngrad.library.keras.optimizer import (
    GradientExchange,
    bits_per_parameter,
    exchange_of,
    move_to_outer,
    optimizers_of,
    undistributed,
)
from terngrad.library.keras.step import SharedStep
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.signals import SIGNALS

_NAME = "DistributedCallback"


class DistributedCallback(FitCallback):
    """Keeps the processes of `model.fit` together.

    - At the start, also after a BackupAndRestore, all take the chief's weights, optimizer state and
      what its callbacks remember. Settings of the model and callbacks, and the data, are compared.
    - In each step, moving statistics, such as those of batch normalization, are averaged. Where the
      optimizer has several nodes, each one's train_step gets a part of the batch.
    - Random layers, such as dropout, draw for each node: its number is mixed into the chief's seed.
    - At the end of an epoch, the other callbacks see the mean metrics of all processes, also of
      `bytes_sent` (so far) and `bits_per_parameter` (of an update).
    - When a callback stops the training of one process, all stop after the same step. So they do at
      SIGINT (Ctrl-C), SIGTERM and SIGHUP: the chief's ModelCheckpoints save, except those of the
      best, which is known only at an epoch's end, and `fit` raises KeyboardInterrupt or SystemExit
      on all. A backup of BackupAndRestore stays.
    - Only the chief writes: the others go without ModelCheckpoint, BackupAndRestore, TensorBoard,
      CSVLogger, RemoteMonitor and the progress bar. But each process saves what its codecs keep
      between steps, beside the backup of a BackupAndRestore. The backup is made after all other
      callbacks, and the chief saves beside it what these remember and random layers have drawn.
    - Data of `group.shard(..., reshuffle=seed)` have the order of each epoch.
    - With `join(elastic=True)` the others go on without a lost process, and one that comes late or
      comes back takes their state and joins them amid an epoch.

    Its place among the callbacks does not matter, but it must come before a TensorBoard, which
    begins to write at once.
    """

    def __init__(
        self,
        group: Group,
        chief_only: Sequence[type[keras.callbacks.Callback]] = (),
        *,
        learning_rate_scaling: str = "none",
    ):
        """Joins the processes in `fit`.

        Args:
          group: the processes, from `terngrad.join`.
          chief_only: further classes of callbacks that only the chief shall have.
          learning_rate_scaling: where processes come and go, updates multiply the learning rate by
            the share of the processes that are there ("linear"), by its square root ("sqrt") or by
            1 ("none"). The optimizer's own learning rate stays that of all.

        Raises:
          TypeError: an argument has another type.
          ValueError: there is no such scaling.
        """
        if learning_rate_scaling not in elastic.SCALINGS:
            raise ValueError(
                f"{_NAME}: learning_rate_scaling is {learning_rate_scaling!r}; allowed are "
                f"{', '.join(elastic.SCALINGS)}"
            )
        super().__init__(group, chief_only, "this step")
        self._step: SharedStep | None = None
        self._scaling = learning_rate_scaling
        self._elastic: elastic.ElasticFit | None = None  # where processes may come and go
        self._saver: saving.StuckSaver | None = None
        self._logs: dict[str, Any] = {}  # of the last batch
        self._is_stand_in = False  # whether _backup is not among this worker's callbacks

    def set_model(self, model: keras.Model) -> None:
        """Prepares a model for `fit`, and puts this callback after the others.

        Raises:
          ValueError: no optimizer of the model is distributed with this group, one of several has
            more than one node, or a TensorBoard comes before this callback.
        """
        super().set_model(model)
        self._check_alone()
        _turn_off_xla(model)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            move_to_outer(optimizer)
        exchanges = [exchange for _, exchange in self._exchanges()]
        if not any(exchange.group is self._group for exchange in exchanges):
            raise ValueError(
                "DistributedCallback: the model's optimizer is not distributed with this group: "
                "model.compile(terngrad.keras.distribute(optimizer, group), ...), or an attribute "
                "of the model that is such an optimizer"
            )
        nodes = max(exchange.nodes for exchange in exchanges)
        if nodes > 1 and len(exchanges) > 1:
            raise ValueError(
                f"{_NAME}: nodes={nodes} in a model with {len(exchanges)} distributed optimizers; "
                "allowed is nodes=1, because each one's update precedes the next one's gradients"
            )
        if self._arrange():
            self._is_stand_in = False
            self._place_memories()
        if self._group.is_elastic:
            elastic.check(self._group, model, exchanges, self._scaling)
            self._step = ElasticStep.of(model, exchanges)
            self._elastic = elastic.ElasticFit(model, optimizer, self._step, self._scaling)
        elif self._group.size > 1 or nodes > 1:
            self._step = SharedStep.of(model, exchanges)

    def _place_memories(self) -> None:
        """Chooses where codecs' memories are saved: beside a backup, which holds the step."""
        for i, (_, exchange) in enumerate(self._exchanges()):
            folder = f"{self._backup.backup_dir}-memory/{self._group.rank}" if self._backup else ""
            exchange.memory_folder = os.path.join(folder, str(i)) if folder else ""

    def _take_backup(self) -> None:
        """Lets a worker without a BackupAndRestore save its codecs' memories beside the chief's."""
        own = self._backup
        described = own and [os.fspath(own.backup_dir), bool(own.delete_checkpoint)]
        chiefs = self._group.all_gather_object(described, what="the start of fit")[0]
        if chiefs and not own:  # it is not among the callbacks, so it only says where
            folder, deletes = chiefs
            kind = keras.callbacks.BackupAndRestore
            self._backup = kind(folder, delete_checkpoint=deletes)
            self._is_stand_in = True
            self._place_memories()

    def save_memories(self) -> None:
        """Saves what codecs keep between steps, before the backup that it belongs to."""
        if not self._backup:
            return
        try:
            for optimizer, exchange in self._exchanges():
                exchange.save_memories(optimizer)
        except OSError as error:
            if not self._is_stand_in:
                raise
            program_warnings.warn(f"what codecs keep is not saved beside the chief's: {error}")
            self._backup = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Compares the workers' models and settings; all take the chief's state.

        Raises:
          MembershipError: names what differs.
        """
        del logs
        fit = internals.fit_call()
        self._begin_fit()
        epoch = self._placeholder.epoch if self._placeholder else None
        if self._group.size > 1 and not self._elastic:
            self._agree(fit.arguments)
            self._take_backup()
            state.average_accumulated(
                self._group, self._optimizers(), is_restored=epoch is not None
            )
            self._copy_state()
            for _, exchange in self._exchanges():
                exchange.has_chiefs_state = True
        if self._state.restore(self._group, epoch):
            for optimizer, exchange in self._exchanges():
                exchange.restore_memories(optimizer)
        if self._elastic:
            self._begin_elastic(fit)
        elif self._group.size > 1:
            state.share_seeds(self.model, self._group, self._step.exchange.nodes)
            self._step.request([0.0] * (1 + len(SIGNALS)))
            self._guard(fit.code)
        for optimizer, exchange in self._exchanges():
            exchange.align(optimizer)
        self._begin_epochs(fit)

    def _begin_elastic(self, fit: internals.FitCall) -> None:
        """Joins the others, who may train already."""
        steps = elastic.check_steps(self.params.get("steps"))
        self._group.sequence = self._group.sequence or SequenceLock()
        optimizers = self._optimizers()
        shared = [c for c in self._callbacks if not isinstance(c, self._writers)]
        configuration = lambda: agreement.configuration_of_elastic(
            self.model, optimizers, shared, self.params
        )
        self._elastic.begin(fit, steps, self.params["epochs"], configuration)
        self._guard(fit.code)
        self._elastic.saver = self._saver

    def _guard(self, fit: CodeType) -> None:
        """Lets another thread save if the steps of `fit` wait for a lost process."""
        group = self._group
        group.sequence = group.sequence or SequenceLock()
        self._saver = saver = saving.StuckSaver(group.sequence, self._save, self._writing)
        saver.end_step()
        self._act_at_losses()
        stuck = saver.save_while_stuck if group.is_chief else None
        # Without a process that may leave the others go on at once; but only the chief saves.
        leaves = group.may_leave and not group.is_chief
        self._signals.catch(fit, stuck, but=[signal.SIGTERM] if leaves else ())

    def _save_at_loss(self) -> str:
        """See base class."""
        return self._saver.save() if self._saver.is_stepping else super()._save_at_loss()

    def _save(self) -> list[str]:
        """Lets the ModelCheckpoints save, after the last whole step."""
        return saving.save(self._callbacks, self._epoch, self._batch, self._logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Passes a request to stop on to the others with the next step; stops when all have it."""
        if self._group.size == 1:
            return
        self._batch, self._logs = batch, logs or {}
        self._calls += 1
        stop, *signals = self._step.requested()
        self._raise_if(signals, logs)
        wants = self.model.stop_training
        self.model.stop_training = bool(stop)
        self._step.request([float(wants), *self._signals.seen()])

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Reports the progress of this process, so that one without a next batch is named."""
        if self._elastic:
            self._elastic.begin_batch(batch)
        if self._calls:  # the first one compiles, which may take any time
            if not self._elastic:  # which counts the batches of all
                self._group.progress.batches = self._calls + 1
            if self._saver:
                self._saver.begin_step()

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Ends the time limit of a step: a validation may take any time."""
        self.pause()

    def end_step(self) -> None:
        """Notes that a step, or several of one call, are done."""
        if self._saver:
            self._saver.end_step()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """See base class."""
        super().on_epoch_begin(epoch, logs)
        if self._elastic:
            self._elastic.begin_epoch(epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops all if one process is to stop."""
        if self._group.size == 1:
            return
        own = np.array([self.model.stop_training, *self._signals.seen()], np.float32)
        own = np.maximum(own, np.float32(self._step.own_requests()))
        if self._elastic:
            stop, *signals = self._elastic.decide(own.tolist())
        else:
            stop, *signals = self._group.all_gather(own, what=END).max(axis=0)
        self._raise_if(signals, logs, is_epoch_over=True)
        self._step.request([0.0] * len(own))
        self.model.stop_training = bool(stop)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Compares weights, restores the program's signal handlers, and deletes codecs' memories.

        It deletes them where Keras deletes backups.
        """
        del logs
        self._group.at_loss.clear()
        try:
            if self._elastic:
                self._equalize_elastic(
                    self._elastic.end(state.digest(self.model)), "at the end of fit"
                )
            elif self._group.size > 1:  # callbacks may have changed them after the last comparison
                self._equalize(self._digests(), "at the end of fit")
        finally:  # a delayed signal is handled now, when no other worker waits
            self._signals.leave()
        if self._backup and self._backup.delete_checkpoint:
            self._delete_beside_backup("memory")

    def before_batch_end(self) -> None:
        """See base class."""
        self.pause()
        self.end_step()

    def before_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Averages the metrics, and saves what codecs keep."""
        self.average(epoch, logs)
        self.save_memories()

    def average(self, epoch: int, logs: dict[str, Any]) -> None:
        """Replaces an epoch's metrics by their means over the processes that have them."""
        exchanges = [exchange for _, exchange in self._exchanges()]
        sent = sum(exchange.bytes_sent for exchange in exchanges)
        logs["bytes_sent"] = sent + (self._step.bytes_sent if self._step else 0)
        reducers = [reducer for exchange in exchanges for reducer in exchange.reducers.values()]
        logs["bits_per_parameter"] = bits_per_parameter(reducers)
        if self._group.size == 1:
            return
        own = {"weights": state.digest(self.model), "rates": agreement.rates(self._optimizers())}
        when = f"after epoch {epoch + 1}"
        if self._elastic:
            self._average_elastic(logs, {"logs": plain_numbers(logs), **own}, when)
            return
        rows = self._share_metrics(logs, **own)
        cause = agreement.differing([row["rates"] for row in rows])
        state.average_accumulated(self._group, self._optimizers())  # before a backup has them
        self._equalize({row["weights"] for row in rows}, when, cause)

    def _average_elastic(self, logs: dict[str, Any], row: dict[str, Any], when: str) -> None:
        """As `average`, over the processes of the view."""
        rows = self._elastic.share_metrics(row)
        if rows is None:  # the others have done so without this one
            logs.update(self._elastic.logs)
            return
        found = means([each["logs"] for each in rows.values()])
        logs.update(found)
        self._elastic.note_logs(found)
        cause = agreement.differing([each["rates"] for each in rows.values()])
        self._equalize_elastic({rank: each["weights"] for rank, each in rows.items()}, when, cause)

    def _equalize_elastic(self, digests: Mapping[int, int], when: str, cause: str = "") -> None:
        """Copies the weights of the first worker to all, if they differ."""
        if len(set(digests.values())) < 2:
            return
        if self._group.rank == min(digests):
            self._warn_of_drift(when, cause, f"all take those of worker {min(digests)}")
        self._elastic.take_state_of(min(digests))

    def _warn_of_drift(self, when: str, cause: str, remedy: str) -> None:
        names = " and ".join(undistributed(self.model))
        what = f"the plain optimizer in {names}" if names else "something"
        cause = cause or f"{what} changes them on each worker alone"
        program_warnings.warn(f"the workers' weights differ {when}: {cause}; {remedy}")

    def _equalize(self, digests: set[int], when: str, cause: str = "") -> None:
        """Copies the chief's weights to all workers, if they differ."""
        if len(digests) < 2:
            return
        if self._group.is_chief:
            self._warn_of_drift(when, cause, "all take the chief's")
        self._copy_state()

    def _exchanges(self) -> Iterator[tuple[keras.optimizers.Optimizer, GradientExchange]]:
        """Yields the distributed optimizers that the model holds."""
        for _, optimizer in optimizers_of(self.model):
            if (exchange := exchange_of(optimizer)) is not None:
                yield optimizer, exchange

    def _optimizers(self) -> list[keras.optimizers.Optimizer]:
        """See base class."""
        return [optimizer for optimizer, _ in self._exchanges()]


def _turn_off_xla(model: keras.Model) -> None:
    if model.jit_compile:
        if not internals.chose_xla(model):
            program_warnings.warn("jit_compile is off: XLA cannot compile the exchange.")
        model.jit_compile = False
        model.train_function = None
