"""`model.fit` whose workers may join and leave: the position of each, and their joint operations.

A joint operation is a step or an exchange of values. All workers run them in the same order, and
wait for each other in each. If a worker is lost or joins, the operation is abandoned, all take the
state of the worker that is furthest, and continue from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import LOST_STATUS
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.operation_errors import OperationError
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection, StateSizeError
from terngrad.exchange.parameter_server.worker_exit import LeaveTrainingError
from terngrad.library.group import Group
from terngrad.library.keras import internals, state
from terngrad.library.keras.elastic_step import ElasticStep, FitPosition
from terngrad.library.keras.fit_callback import plain_numbers
from terngrad.library.keras.optimizer import GradientExchange, exchange_of, with_inner_optimizers
from terngrad.library.keras.saving import StuckSaver


class Views:
    """The view of a process, and how it joins the next one.

    If processes join or are lost, an operation raises an error for which `is_interruption` is true.
    The process then calls `synchronize` and repeats the operation.
    """

    def __init__(self, group: Group) -> None:
        """Serves a group with `is_elastic`."""
        self._group = group

    @property
    def _connection(self) -> ParameterServerConnection:
        self._group.check_open()
        return self._group.connection

    @property
    def have_begun(self) -> bool:
        """Whether this process has been in a view."""
        return bool(self._connection.version)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the processes in the view, in ascending order."""
        return self._connection.members

    def gather(self, name: str, content: bytes, round_: int) -> Mapping[int, bytes]:
        """Returns the values of the processes in the view, by rank.

        All get the same ones. They may have the value of a process that was lost meanwhile, and
        lack that of one that has joined since they were sent first.

        Args:
          name: of the value, the same on all.
          content: see `messages.longest_value`.
          round_: number of the call with this name; it grows, and is the same on all.
        """
        return self._connection.values_of_view(name, content, round_)

    def is_interruption(self, error: Exception) -> bool:
        """Returns whether an operation failed because processes come or go."""
        is_one = isinstance(error, (OperationError, InterruptionError))
        return is_one and self._connection.was_interrupted()

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """Takes part in the next view; see `Group.synchronize`.

        Raises:
          LeaveTrainingError: the others train other variables, so this process has left them.
        """
        try:
            return self._group.synchronize(state)
        except StateSizeError:
            self.leave("the others are in a later call of fit, which no worker can join")

    def leave(self, why: str) -> None:
        """Leaves the others, which go on.

        Raises:
          LeaveTrainingError: ends this process.
        """
        print(f"{self._group.label} ends: {why}", flush=True)
        error = LeaveTrainingError(LOST_STATUS)
        self._group.__exit__(LeaveTrainingError, error, None)
        raise error


SCALINGS: Mapping[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}
_LAST_EPOCH = 1 << 40


class ElasticFit:
    """A call of `fit` on this worker.

    Attributes:
      saver: saves while a step waits for another process; None = none does.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        step: ElasticStep,
        learning_rate_scaling: str,
    ) -> None:
        """Prepares to train a model with its only distributed optimizer."""
        self.saver: StuckSaver | None = None
        self._model, self._optimizer, self._step = model, optimizer, step
        self._exchange: GradientExchange = step.exchange
        self._group: Group = self._exchange.group
        self._position = step.position
        self._scaling = SCALINGS[learning_rate_scaling]
        if learning_rate_scaling != "none" and self._exchange.rate_factor is None:
            self._exchange.rate_factor = tf.Variable(1.0, trainable=False)
        self._views = Views(self._group)
        self._fit = 0
        self._epoch = self._batch = self._steps = 0
        self._made = 0  # steps of the epoch
        self._is_ending = False
        self._has_run = False  # the first step may take any time
        # Of the others, at the position where this worker joins.
        self._rates: list[float | None] | None = None
        self._function: Callable[[Any], Any] | None = None

    def begin(
        self,
        fit: internals.FitCall,
        steps: int,
        epochs: int,
        configuration: Callable[[], dict[str, str]],
    ) -> int:
        """Compiles the step, joins the others and takes their state; returns the first epoch.

        Args:
          fit: the call.
          steps: of an epoch.
          epochs: index of the last epoch, plus 1.
          configuration: returns what all workers must have in common, once the model is built.
        """
        position, step = self._position, self._step
        self._fit, self._steps = position.fits, steps
        position.fits += 1
        self._compile(internals.element_spec(fit))
        first = internals.initial_epoch(self._model) or fit.arguments.get("initial_epoch") or 0
        self._epoch = first
        if not self._views.have_begun:
            self._group.agree(configuration(), "fit")
        elif self._group.rank == min(self._views.members):  # it gives the others its state
            position.progress.assign_add(1)
        position.begin(FitPosition(self._fit, first))
        position.set_summary({})
        step.copy()
        step.forget_requests()
        begins = self._synchronize(at_start=True)
        current = position.current
        if not begins and current != FitPosition(self._fit, first):
            now = f"in epoch {current.epoch + 1}, after {current.batch} of {steps} batches"
            print(f"Joined the training {now}.", flush=True)
        first = epochs if any(position.summary.get("requests", ())) else current.epoch
        internals.set_initial_epoch(self._model, first)
        self._model.train_function = self
        return first

    def _compile(self, spec: Any) -> None:
        """Traces the step before the others wait for it."""
        batch = _without_optionals(spec)
        self._step.make_variables(batch)
        self._function = tf.function(self._step.run, autograph=False, reduce_retracing=True)
        self._function.get_concrete_function(batch)

    def begin_epoch(self, epoch: int) -> None:
        """Notes the epoch; metrics are empty."""
        self._epoch, self._batch, self._made = epoch, 0, 0
        self._step.copy()

    def begin_batch(self, batch: int) -> None:
        """Notes the batch."""
        self._batch = batch

    def __call__(self, iterator: Any) -> Any:
        """Replaces the model's train_function: makes a step with the next batch.

        If the others have made the step of this batch already, the batch is only read.
        """
        batch = None
        while not self._position.current > (self._fit, self._epoch, 0, self._batch):
            batch = self._next(iterator) if batch is None else batch
            self._take_rates()
            if self._has_run:
                self._group.progress.batches = int(self._position.progress) + 1
            try:
                logs = self._function(batch)
            except Exception as error:
                self._go_on_after(error)
            else:
                self._has_run = True
                self._made += 1
                return logs
        current = self._position.current
        is_amid = current[:3] == (self._fit, self._epoch, 0) and current.batch < self._steps
        if batch is None and is_amid:
            self._next(iterator)
        return self._model.get_metrics_result()

    def _next(self, iterator: Any) -> Any:
        try:
            return _without_optionals(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            raise ValueError(
                f"fit: the data of {self._group.label} ended after {self._batch} batches of epoch "
                f"{self._epoch + 1}; allowed are {self._steps}, the same on all workers"
            ) from None

    def share_metrics(self, row: Mapping[str, Any]) -> dict[int, Any] | None:
        """Returns the rows of all workers at the end of an epoch, by rank.

        None = they have exchanged them without this worker; see `logs`.

        Args:
          row: of this worker, with metrics as "logs". Those of the training are left out if it made
            no step of the epoch.
        """
        if not self._made:
            known = {name: x for name, x in row["logs"].items() if name.startswith("val_")}
            row = {**row, "logs": known}
        rows = self._exchange_rows(FitPosition(self._fit, self._epoch, 0, self._steps), row)
        if rows is not None:
            self._position.move(FitPosition(self._fit, self._epoch, 1))
        return rows

    @property
    def logs(self) -> dict[str, Any]:
        """The mean metrics of this epoch, if the others know them."""
        summary = self._position.summary
        known = summary.get("logs", {}) if summary.get("epoch") == self._epoch else {}
        as_metric = lambda value: np.asarray(value) if isinstance(value, list) else value
        return {name: as_metric(value) for name, value in known.items()}

    def note_logs(self, logs: Mapping[str, Any]) -> None:
        """Keeps the mean metrics for workers that are disconnected now."""
        self._position.set_summary({"epoch": self._epoch, "logs": plain_numbers(logs)})

    def decide(self, requests: Sequence[float]) -> list[float]:
        """Returns the largest of all workers' requests at the end of an epoch.

        All take the learning rates of the first worker, which its callbacks may have set.
        """
        position = self._position
        row = {"requests": list(requests), "rates": _rates(self._optimizer)}
        rows = self._exchange_rows(FitPosition(self._fit, self._epoch, 1, self._steps), row)
        if rows is None:
            summary = position.summary
            known = summary.get("requests") if summary.get("epoch") == self._epoch else None
            return known or [0.0] * len(requests)
        found = np.max([each["requests"] for each in rows.values()], axis=0).tolist()
        _set_rates(self._optimizer, rows[min(rows)]["rates"])
        position.set_summary({**position.summary, "epoch": self._epoch, "requests": found})
        position.move(FitPosition(self._fit, self._epoch + 1))
        return found

    def end(self, row: Any) -> dict[int, Any]:
        """Ends `fit` with the others; returns the rows of all, by rank."""
        self._is_ending = True
        rows = self._exchange_rows(FitPosition(self._fit, _LAST_EPOCH), row)
        if rows is not None:
            self._position.move(FitPosition(self._fit + 1, 0))
        internals.set_initial_epoch(self._model, None)
        self._model.train_function = None
        return rows or {}

    def take_state_of(self, rank: int) -> None:
        """Gives all workers the state of one, where theirs differ at the same position."""
        if self._group.rank == rank:
            self._position.progress.assign_add(1)
        self._synchronize()

    def _exchange_rows(self, own: FitPosition, row: Any) -> dict[int, Any] | None:
        """Exchanges rows; returns those of all workers by rank.

        Args:
          own: the position of this exchange; returns None if the workers are past it.
          row: a value for JSON.
        """
        content = json.dumps(row).encode()
        while not self._position.current > own:
            self._take_rates()
            try:
                found = self._views.gather("fit", content, int(self._position.progress))
                return {rank: json.loads(each) for rank, each in sorted(found.items())}
            except Exception as error:
                self._go_on_after(error)
        return None

    def _go_on_after(self, error: Exception) -> None:
        """Takes part in the next view if others come or go; else raises the error."""
        if not self._views.is_interruption(error):
            raise error
        is_stepping = self.saver is not None and self.saver.is_stepping
        if is_stepping:
            self.saver.end_step()  # variables may be of two steps during the next lines
        self._synchronize()
        if is_stepping:
            self.saver.begin_step()

    def _synchronize(self, *, at_start: bool = False) -> bool:
        """Takes part in the next view; returns whether the training begins there."""
        before = int(self._position.progress)
        begins = self._views.synchronize(self._step.state(self._optimizer))
        self._step.restore()
        state.refresh(self._model)
        if (factor := self._exchange.rate_factor) is not None:
            usual = self._group.batches_per_step
            factor.assign(self._scaling(min(len(self._views.members), usual) / usual))
        current = self._position.current
        if current.fit > self._fit and not self._is_ending:
            self._views.leave("the others are in a later call of fit, which no worker can join")
        if not at_start and current < (self._fit, self._epoch):
            raise MembershipError("no worker that is left has the state of the training")
        if int(self._position.progress) != before:
            self._rates = _rates(self._optimizer)
        if at_start and current[1:] == (self._epoch, 0, 0):  # callbacks may set another one
            self._rates = None
        return begins

    def _take_rates(self) -> None:
        """Sets the learning rates of the others, which callbacks may have changed meanwhile.

        They change it between two operations; that of the others is already the next one's.
        """
        if self._rates is not None:
            _set_rates(self._optimizer, self._rates)
            self._rates = None


def check(
    group: Group, model: keras.Model, exchanges: Sequence[GradientExchange], scaling: str
) -> None:
    """Checks what does not need the data.

    Raises:
      ValueError: names what cannot be trained where workers may come and go.
    """
    why = ""
    optimizer = getattr(model, "optimizer", None)
    if len(exchanges) > 1 or exchanges[0] is not exchange_of(optimizer):
        why = f"a model with {len(exchanges)} distributed optimizers; allowed is that of compile"
    elif optimizer.gradient_accumulation_steps:
        why = f"gradient_accumulation_steps is {optimizer.gradient_accumulation_steps}; allowed is "
        why += "None"
    elif model.run_eagerly:
        why = "run_eagerly is True; allowed is False"
    elif model.steps_per_execution > 1:
        why = f"steps_per_execution is {model.steps_per_execution}; allowed is 1"
    elif scaling != "none" and with_inner_optimizers(optimizer)[1:]:
        why = f"learning_rate_scaling is {scaling!r}; allowed is 'none' with "
        why += type(optimizer).__name__
    if why:
        raise ValueError(f"DistributedCallback: {why}, where workers may come and go")


def check_steps(steps: int | None) -> int:
    """Returns the number of steps of an epoch.

    Raises:
      ValueError: Keras does not know it.
    """
    if not steps or steps < 0:
        raise ValueError(
            "fit: the number of batches is unknown, so workers that come and go cannot tell where "
            "an epoch ends: give steps_per_epoch"
        )
    return int(steps)


def _rates(optimizer: keras.optimizers.Optimizer) -> list[float | None]:
    """Returns the learning rates of an optimizer and those within; None if no callback sets it."""
    return [_rate(each) for each in with_inner_optimizers(optimizer)]


def _rate(optimizer: keras.optimizers.Optimizer) -> float | None:
    rate = getattr(optimizer, "learning_rate", None)  # a MultiOptimizer has none
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


def _set_rates(optimizer: keras.optimizers.Optimizer, rates: Sequence[float | None]) -> None:
    for each, rate in zip(with_inner_optimizers(optimizer), rates, strict=True):
        if rate is not None and rate != _rate(each):
            each.learning_rate = rate


def _without_optionals(batch: Any) -> Any:
    """Returns a batch, or its type, with None where Keras has an optional tensor."""
    kinds = (tf.experimental.Optional, tf.OptionalSpec)
    return keras.tree.map_structure(lambda part: None if isinstance(part, kinds) else part, batch)
