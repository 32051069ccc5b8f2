"""One step of training with ternary gradients: the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier, IdleClassifier, Losses
from terngrad.training.nodes import compute_nodes, values_of_row
from terngrad.training.optimizers import Optimizer
from terngrad.training.reduction import Aggregate, Reduction
from terngrad.training.schedules import Schedule


class StepResult(NamedTuple):
    """The results of a step: losses averaged over all nodes, rate, gradients exchanged."""

    losses: Losses
    stop: tf.Tensor  # bool, a process was asked to stop
    save: tf.Tensor  # bool, a process asked all processes to save after this step
    learning_rate: tf.Tensor
    gradients: list[tf.Tensor]  # the first local node's
    aggregate: Aggregate


class Step:
    """The base class of steps: requests, losses and moving statistics."""

    def __init__(
        self,
        classifier: Classifier | IdleClassifier,
        reduction: Reduction,
        schedule: Schedule,
        averages: MovingAverages | None,
        save_request: tf.Variable | None,
    ) -> None:
        """Combines the parts; see `TrainStep`."""
        self._classifier = classifier
        self._reduction = reduction
        self._exchange = reduction.exchange
        self._schedule = schedule
        self._averages = averages
        self._stop = tf.Variable(0.0, trainable=False)
        self._save = save_request

    def request_stop(self) -> None:
        """Passes a request to stop on to all processes with the next step."""
        self._stop.assign(1.0)
        self._exchange.require_in_next_step()

    @property
    def saves_together(self) -> bool:
        """Whether all processes save after the same step."""
        return self._save is not None

    def request_save(self) -> None:
        """Makes all processes save after one of the next steps; needs `saves_together`."""
        self._save.assign(1.0)

    def _share(self, losses: Sequence[Losses]) -> tuple[Losses, tf.Tensor, tf.Tensor]:
        """Returns the mean losses over all nodes, and whether all nodes stop, and save."""
        requests = [self._stop, self._save] if self.saves_together else [self._stop]
        values = [variable.read_value() for variable in requests]
        signals = [[tf.stack([*loss, *values])] for loss in losses]
        (means,) = self._exchange.mean(signals, "losses")
        entropy, regularization, *requested = tf.unstack(means)
        save = requested[1] > 0.0 if self.saves_together else tf.constant(False)
        return Losses(entropy, regularization), requested[0] > 0.0, save

    def _mean_statistics(self, states: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the mean moving statistics, which is exact: they are linear in a node's batch."""
        variables = self._classifier.state.values()
        if not variables:
            return []
        (row,) = self._exchange.mean([[state] for state in states], "moving statistics")
        return values_of_row(row, variables)

    def _assign_shared(self, statistics: Sequence[tf.Tensor], save: tf.Tensor) -> None:
        """Sets the moving statistics, and ends a request to save if all save now."""
        for variable, value in zip(self._classifier.state.values(), statistics, strict=True):
            variable.assign(value)
        if self.saves_together:
            self._save.assign(tf.where(save, 0.0, self._save))


class TrainStep(Step):
    """Local gradients -> shared mean gradient -> update."""

    def __init__(
        self,
        classifier: Classifier | IdleClassifier,
        reduction: Reduction,
        optimizer: Optimizer,
        schedule: Schedule,
        averages: MovingAverages | None,
        *,
        save_request: tf.Variable | None = None,
    ) -> None:
        """Combines the parts.

        Args:
          classifier: net, loss, parameters.
          reduction: reduces the gradients of the classifier's variables, and counts the steps. Its
            draws are those of dropout, too.
          optimizer: optimizer of the classifier's variables.
          schedule: learning rate by step.
          averages: moving averages of the classifier's variables, or None.
          save_request: float32 scalar that all steps of a process share. It is 1 from
            `request_save` until all processes save, after the same step, each its own memory.
            None = the processes do not save together.
        """
        super().__init__(classifier, reduction, schedule, averages, save_request)
        self._optimizer = optimizer

    def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> StepResult:
        """Trains on the process' batch: float32 [B, H, W, C], int32 [B], split over its nodes."""
        reduction = self._reduction
        step = reduction.step.read_value()
        rate, keys = self._schedule(step), reduction.keys(step)
        groups = [codec.variables for codec in reduction.codecs]  # each is exchanged when it exists
        computed = compute_nodes(self._classifier, images, labels, keys, reduction.devices, groups)
        gradients, losses, states = zip(*computed, strict=True)
        shared, stop, save = self._share(losses)
        aggregate = reduction.reduce(gradients, keys, as_sums=self._optimizer.takes_sums)
        statistics = self._mean_statistics(states)
        with reduction.updates(aggregate, gradients, [*shared, stop, save, *statistics]):
            self._update(aggregate, rate, step)
            self._assign_shared(statistics, save)
        return StepResult(shared, stop, save, rate, gradients[0], aggregate)

    def _update(self, aggregate: Aggregate, rate: tf.Tensor, step: tf.Tensor) -> None:
        """Updates the variables and their moving averages."""
        averages = self._averages
        self._optimizer.apply(aggregate.means, rate, step)
        if averages:
            decoded = [i for i, mean in enumerate(aggregate.means) if mean is not None]
            averages.update(step, decoded)
        for sums in aggregate.sums:
            averaged = averages.part(step, sums.variables) if averages else None
            self._optimizer.apply_sums(sums, rate, step, averaged)
