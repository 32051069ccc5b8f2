"""The callback that keeps the processes of `model.fit` together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import keras
import numpy as np

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.keras import (
    agreement,
    elastic,
    internals,
    program_warnings,
    saving,
    state,
)
from terngrad.library.keras.backup import BackupPlaceholder, BackupSaver, FitState
from terngrad.library.keras.data import compare_data
from terngrad.library.keras.elastic_step import ElasticStep
from terngrad.library.keras.optimizer import (
    GradientExchange,
    bits_per_parameter,
    exchange_of,
    move_to_outer,
    optimizers_of,
    undistributed,
)
from terngrad.library.keras.signals import Signals
from terngrad.library.keras.step import SharedStep
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.signals import SIGNALS

_END = "the end of an epoch"
_NAME = "DistributedCallback"
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


class DistributedCallback(keras.callbacks.Callback):
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
          ValueError: there is no such scaling.
        """
        if learning_rate_scaling not in elastic.SCALINGS:
            raise ValueError(
                f"{_NAME}: learning_rate_scaling is {learning_rate_scaling!r}; allowed are "
                f"{', '.join(elastic.SCALINGS)}"
            )
        super().__init__()
        self._group = group
        self._writers = (*_WRITERS, *chief_only)
        self._callbacks: list[keras.callbacks.Callback] = []
        self._backup: keras.callbacks.BackupAndRestore | None = None
        self._placeholder: BackupPlaceholder | None = None  # of the chief
        self._state: FitState | None = None
        self._has_steps = False  # whether fit has steps_per_epoch: epochs are no passes over data
        self._step: SharedStep | None = None
        self._scaling = learning_rate_scaling
        self._elastic: elastic.ElasticFit | None = None  # where processes may come and go
        self._epoch = 0
        self._is_first_epoch = True  # of this fit
        self._batch = 0  # index in the epoch
        self._batches = 0  # made in this fit
        self._signals = Signals()
        self._saver: saving.StuckSaver | None = None
        self._logs: dict[str, Any] = {}  # of the last batch

    def set_model(self, model: keras.Model) -> None:
        """Prepares a model for `fit`, and puts this callback after the others.

        Raises:
          ValueError: no optimizer of the model is distributed with this group, one of several has
            more than one node, or a TensorBoard comes before this callback.
        """
        super().set_model(model)
        _turn_off_xla(model)
        optimizer = getattr(model, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None and exchange_of(inner) is not None:
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
        self._arrange()
        if self._group.is_elastic:
            elastic.check(self._group, model, exchanges, self._scaling)
            self._step = ElasticStep.of(model, exchanges)
            self._elastic = elastic.ElasticFit(model, optimizer, self._step, self._scaling)
        elif self._group.size > 1 or nodes > 1:
            self._step = SharedStep.of(model, exchanges)

    def _arrange(self) -> None:
        """Puts callbacks before and after the others; only the chief keeps those that write."""
        caller = internals.callback_list()
        if caller is None:
            raise ValueError(f"{_NAME}: give it to fit, fit(..., callbacks=[{_NAME}(group)])")
        if isinstance(caller.callbacks[0], _Before):
            return  # a second call, from the place at the end
        before = caller.callbacks[: caller.callbacks.index(self)]
        if any(isinstance(c, keras.callbacks.TensorBoard) for c in before):
            raise ValueError(
                "DistributedCallback: put it before TensorBoard in the list of callbacks"
            )
        self._callbacks = [c for c in caller.callbacks if c is not self]
        self._place_memories()
        if not self._group.is_chief:
            # Keras goes through the list at this moment, so that its length counts.
            idle = keras.callbacks.Callback()
            self._callbacks = [idle if isinstance(c, self._writers) else c for c in self._callbacks]
        others = [c for c in self._callbacks if c is not self._backup]
        self._state = FitState(self.model, others, self._backup)
        caller.callbacks[:] = [_Before(self), *self._with_backup_last(), self]

    def _with_backup_last(self) -> list[keras.callbacks.Callback]:
        """Moves the chief's backup behind the other callbacks, which change at an epoch's end."""
        self._placeholder = None
        if self._backup not in self._callbacks:
            return self._callbacks
        self._placeholder = BackupPlaceholder(self._backup)
        others = [self._placeholder if c is self._backup else c for c in self._callbacks]
        return [*others, BackupSaver(self._backup, self._state.save)]

    def _place_memories(self) -> None:
        """Chooses where codecs' memories are saved: beside a backup, which holds the step."""
        kinds = keras.callbacks.BackupAndRestore
        self._backup = next((c for c in self._callbacks if isinstance(c, kinds)), None)
        for i, (_, exchange) in enumerate(self._exchanges()):
            folder = f"{self._backup.backup_dir}-memory/{self._group.rank}" if self._backup else ""
            exchange.memory_folder = os.path.join(folder, str(i)) if folder else ""

    def save_memories(self) -> None:
        """Saves what codecs keep between steps, before the backup that it belongs to."""
        if self._backup:
            for optimizer, exchange in self._exchanges():
                exchange.save_memories(optimizer)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Compares the workers' models and settings; all take the chief's state.

        Raises:
          MembershipError: names what differs.
        """
        del logs
        fit = internals.fit_call()
        self._batches = 0
        self._is_first_epoch = True
        self._group.leaving.stopped_by = None
        self.pause()
        if self._group.size > 1 and not self._elastic:
            self._agree(fit.arguments)
            self._copy_state()
        epoch = self._placeholder.epoch if self._placeholder else None
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
        self._has_steps = fit.arguments.get("steps_per_epoch") is not None
        first = internals.initial_epoch(self.model) or fit.arguments.get("initial_epoch")
        self._group.set_epoch(first or 0)

    def _begin_elastic(self, fit: internals.FitCall) -> None:
        """Joins the others, who may train already."""
        steps = elastic.check_steps(self.params.get("steps"))
        self._group.sequence = self._group.sequence or SequenceLock()
        optimizers = [optimizer for optimizer, _ in self._exchanges()]
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
        self._saver = saver = saving.StuckSaver(group.sequence, self._save)
        saver.end_step()
        group.at_loss[:] = [saver.save] if group.is_chief else []
        stuck = saver.save_while_stuck if group.is_chief else None
        # Without a process that may leave the others go on at once; but only the chief saves.
        leaves = group.may_leave and not group.is_chief
        self._signals.catch(fit, stuck, but=[signal.SIGTERM] if leaves else ())

    def _save(self) -> list[str]:
        """Lets the ModelCheckpoints save, after the last whole step."""
        return saving.save(self._callbacks, self._epoch, self._batch, self._logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Passes a request to stop on to the others with the next step; stops when all have it."""
        if self._group.size == 1:
            return
        self._batch, self._logs = batch, logs or {}
        self._batches += 1
        stop, *signals = self._step.requested()
        self._raise_if(signals, logs)
        wants = self.model.stop_training
        self.model.stop_training = bool(stop)
        self._step.request([float(wants), *self._signals.seen()])

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Reports the progress of this process, so that one without a next batch is named."""
        if self._elastic:
            self._elastic.begin_batch(batch)
        if self._batches:  # the first one compiles, which may take any time
            if not self._elastic:  # which counts the batches of all
                self._group.progress.batches = self._batches + 1
            if self._saver:
                self._saver.begin_step()

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Ends the time limit of a step: a validation may take any time."""
        self.pause()

    def end_step(self) -> None:
        """Notes that a step, or several of one call, are done."""
        if self._saver:
            self._saver.end_step()

    def pause(self) -> None:
        """Ends the time limit of a step: callbacks may take any time before the next batch."""
        self._group.progress.batches = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch, and compares the learning rates of the first one."""
        self._epoch = epoch
        if not self._has_steps:
            self._group.set_epoch(epoch)
        if self._elastic:
            self._elastic.begin_epoch(epoch)
        elif self._group.size > 1 and self._is_first_epoch:
            agreement.agree_on_rates(self._group, [optimizer for optimizer, _ in self._exchanges()])
        self._is_first_epoch = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops all if one process is to stop."""
        if self._group.size == 1:
            return
        own = np.array([self.model.stop_training, *self._signals.seen()], np.float32)
        own = np.maximum(own, np.float32(self._step.own_requests()))
        if self._elastic:
            stop, *signals = self._elastic.decide(own.tolist())
        else:
            stop, *signals = self._group.all_gather(own, what=_END).max(axis=0)
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
                digests = self._group.all_gather_object(
                    state.digest(self.model), what="the end of fit"
                )
                self._equalize(set(digests), "at the end of fit")
        finally:  # a delayed signal is handled now, when no other worker waits
            self._signals.leave()
        if self._backup and self._backup.delete_checkpoint:
            folder = f"{self._backup.backup_dir}-memory"
            shutil.rmtree(f"{folder}/{self._group.rank}", ignore_errors=True)
            with contextlib.suppress(OSError):  # it has files of others, or does not exist
                os.rmdir(folder)
            if self._group.is_chief:
                self._state.delete()

    def average(self, epoch: int, logs: dict[str, Any]) -> None:
        """Replaces an epoch's metrics by their means over the processes that have them."""
        exchanges = [exchange for _, exchange in self._exchanges()]
        sent = sum(exchange.bytes_sent for exchange in exchanges)
        logs["bytes_sent"] = sent + (self._step.bytes_sent if self._step else 0)
        logs["bits_per_parameter"] = bits_per_parameter(exchanges)
        if self._group.size == 1:
            return
        own = {name: np.asarray(value).tolist() for name, value in logs.items()}
        if not self._elastic:
            self._group.progress.batches = self._batches or None
        rates = agreement.rates(optimizer for optimizer, _ in self._exchanges())
        digest = state.digest(self.model)
        row = {"logs": own, "weights": digest, "rates": rates}
        when = f"after epoch {epoch + 1}"
        if self._elastic:
            self._average_elastic(logs, row, when)
            return
        rows = self._group.all_gather_object(row, what=_END)
        self.pause()
        logs.update(_means([row["logs"] for row in rows]))
        cause = agreement.differing([row["rates"] for row in rows])
        self._equalize({row["weights"] for row in rows}, when, cause)

    def _average_elastic(self, logs: dict[str, Any], row: dict[str, Any], when: str) -> None:
        """As `average`, over the processes of the view."""
        rows = self._elastic.share_metrics(row)
        if rows is None:  # the others have done so without this one
            logs.update(self._elastic.logs)
            return
        means = _means([each["logs"] for each in rows.values()])
        logs.update(means)
        self._elastic.note_logs(means)
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

    def _agree(self, given: Mapping[str, Any]) -> None:
        """Compares models, settings and the data that `fit` was given; see on_train_begin."""
        optimizers = [optimizer for optimizer, _ in self._exchanges()]
        agreement.agree_on_model(self._group, self.model, optimizers, self.params)
        shared = [c for c in self._callbacks if not isinstance(c, self._writers)]
        agreement.agree_on_callbacks(self._group, self.model, shared)
        compare_data(self._group, given)

    def _copy_state(self) -> None:
        variables = [*self.model.weights]
        for optimizer, _ in self._exchanges():
            variables += optimizer.variables if optimizer.built else []
        self._group.broadcast(list({id(plain(v)): v for v in variables}.values()))
        state.refresh(self.model)
        epochs = self._group.all_gather_object(internals.initial_epoch(self.model))
        internals.set_initial_epoch(self.model, epochs[0])

    def _raise_if(
        self, signals: Sequence[float], logs: dict | None, *, is_epoch_over: bool = False
    ) -> None:
        """Ends `fit` where a process was sent a signal, the same way on all."""
        if not any(signals):
            return
        number = next(n for n, said in zip(SIGNALS, signals, strict=True) if said)
        self._signals.leave(forget=True)
        self.pause()
        saving.save(
            self._callbacks, self._epoch, self._batch, logs or {}, is_epoch_over=is_epoch_over
        )
        if number != signal.SIGINT:
            raise SystemExit(128 + number)
        why = "a worker was interrupted; all stopped after the same step"
        self._group.leaving.stopped_by = KeyboardInterrupt(why)
        raise self._group.leaving.stopped_by


class _Before(keras.callbacks.Callback):
    """The part of DistributedCallback that comes before the other callbacks."""

    def __init__(self, callback: DistributedCallback) -> None:
        super().__init__()
        self._callback = callback

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self._callback.average(epoch, logs if logs is not None else {})
        self._callback.save_memories()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._callback.pause()
        self._callback.end_step()


def _turn_off_xla(model: keras.Model) -> None:
    if model.jit_compile:
        if not internals.chose_xla(model):
            program_warnings.warn("jit_compile is off: XLA cannot compile the exchange.")
        model.jit_compile = False
        model.train_function = None


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each metric over the processes that have it."""
    names = sorted({name for row in rows for name in row})
    return {name: _mean([row[name] for row in rows if name in row]) for name in names}


def _mean(values: Sequence[Any]) -> Any:
    """Returns the mean of numbers, or of arrays of numbers; else the first value."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        return values[0]
    mean = array.mean(axis=0)
    return float(mean) if mean.ndim == 0 else mean
