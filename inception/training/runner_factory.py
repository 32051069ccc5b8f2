"""Compiles the steps of a training: with an exchange in each, or with local steps."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from inception.flags.configs import TrainConfig
from inception.training.batches import LastBatch
from terngrad.codecs.codec import Codec
from terngrad.exchange.exchange import Exchange
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier, IdleClassifier
from terngrad.training.local_step import InnerOptimizer, LocalStep
from terngrad.training.memory import Memory
from terngrad.training.optimizers import Momentum, Optimizer, make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runner import Runner
from terngrad.training.schedules import Schedule
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.step import TrainStep


class Optimizers(NamedTuple):
    """The optimizers of the weights.

    Attributes:
      inner: with local steps, the optimizer of each of this process' nodes; else empty.
      shared: updates the weights that all nodes share.
    """

    inner: list[InnerOptimizer]
    shared: Optimizer


def make_optimizers(
    config: TrainConfig,
    variables: Sequence[tf.Variable],
    kernels: GradientKernels,
    devices: Sequence[str],
) -> Optimizers:
    """Returns the optimizers of a net's variables; `devices` are those of this process' nodes."""
    make = lambda own, kernels=None: make_optimizer(config.optimizer, own, config.momentum, kernels)
    if config.local_steps == 1:
        return Optimizers([], make(variables, kernels))
    own = config.local_fragments > 1 or config.local_overlap
    inner = [InnerOptimizer(make, variables, each, has_own_weights=own) for each in devices]
    return Optimizers(inner, Momentum(variables, config.outer_momentum, nesterov=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerFactory:
    """Makes the runners of a training, which differ in their codecs and memory only.

    Attributes:
      step: int64 variable, steps done.
      rounds: int64 variable, exchanges done; the same variable without local steps.
      save_request: see `TrainStep`; None if no process has a memory to save.
      last_batch: keeps the batch of a step that may be repeated; None if none is.
      sequence: learns when a step is done, if there are other processes.
      on_batch: called, from any thread, for each batch.
      is_connected: whether there are other processes.
    """

    config: TrainConfig
    classifier: Classifier
    exchange: Exchange
    optimizers: Optimizers
    schedule: Schedule
    averages: MovingAverages | None
    step: tf.Variable
    rounds: tf.Variable
    devices: Sequence[str]
    save_request: tf.Variable | None
    last_batch: LastBatch | None
    sequence: SequenceLock
    on_batch: Callable[[], None] | None
    is_connected: bool

    def make(self, codecs: Sequence[Codec], memory: Memory | None = None) -> Runner:
        """Returns the runner of the variables of `codecs`; float epochs have no memory."""
        reduction = Reduction(
            codecs,
            self.exchange,
            self.rounds,
            self.config.seed,
            self.devices,
            memory,
            self._noted,
            memory_decay=self.config.outer_feedback,
        )
        if self.config.local_steps > 1:
            return self._runner(self._local_step(reduction), codecs)
        excluded_runner = None
        if self.is_connected:
            idle = self._train_step(IdleClassifier(self.classifier), reduction)
            excluded_runner = self._runner(idle, codecs, is_observable=False)
        return self._runner(self._train_step(self.classifier, reduction), codecs, excluded_runner)

    @property
    def _noted(self) -> SequenceLock | None:
        return self.sequence if self.is_connected else None

    def _runner(
        self,
        step: TrainStep | LocalStep,
        codecs: Sequence[Codec],
        excluded_runner: Runner | None = None,
        *,
        is_observable: bool = True,
    ) -> Runner:
        return Runner(
            step,
            codecs,
            self.on_batch,
            excluded_runner,
            is_observable=is_observable,
            take=self.last_batch.take if self.last_batch else next,
            sequence=self._noted,
        )

    def _train_step(self, classifier: Classifier, reduction: Reduction) -> TrainStep:
        return TrainStep(
            classifier,
            reduction,
            self.optimizers.shared,
            self.schedule,
            self.averages,
            save_request=self.save_request,
        )

    def _local_step(self, reduction: Reduction) -> LocalStep:
        return LocalStep(
            self.classifier,
            reduction,
            *self.optimizers,
            self.schedule,
            self.averages,
            self.step,
            local_steps=self.config.steps_per_exchange,
            outer_rate=self.config.outer_learning_rate,
            overlaps=self.config.local_overlap,
            save_request=self.save_request,
        )
