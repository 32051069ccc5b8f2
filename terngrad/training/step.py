"""One step of training with ternary gradients: the paper's Algorithm 1."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.ops.gradient_kernels import Sums
from terngrad.training.averages import MovingAverages
from terngrad.training.bystander import Bystander
from terngrad.training.classifier import Classifier, Losses
from terngrad.training.memory import Memories, Memory, no_memories
from terngrad.training.nodes import (
    compute_nodes,
    draw_keys,
    exchange_nodes,
    seed_of_draws,
    spread,
    state_of_row,
)
from terngrad.training.optimizers import Optimizer
from terngrad.training.schedules import Schedule
from terngrad.training.sequence_lock import SequenceLock


class Aggregate(NamedTuple):
    """The results of an exchange of gradients.

    Attributes:
      means: mean gradient of each variable; None if `sums` has it.
      sums: mean gradients that are not decoded, by bucket.
      scales: float32 [v], scale of each coded variable; infinite if a gradient is not finite.
      encoded: the first local node's encoded buckets, by codec.
      kept: memories after a step that this process took part in, by codec and local node.
      unsent: memories after a step that the others made without this process.
    """

    means: list[tf.Tensor | None]
    sums: list[Sums]
    scales: tf.Tensor
    encoded: list[list[tf.Tensor]]
    kept: Memories
    unsent: Memories


class StepResult(NamedTuple):
    """The results of a step: losses averaged over all nodes, rate, gradients exchanged."""

    losses: Losses
    stop: tf.Tensor  # bool, a process was asked to stop
    save: tf.Tensor  # bool, a process asked all processes to save after this step
    learning_rate: tf.Tensor
    gradients: list[tf.Tensor]  # the first local node's
    aggregate: Aggregate


class TrainStep:
    """Local gradients -> shared mean gradient -> update."""

    def __init__(
        self,
        classifier: Classifier | Bystander,
        codecs: Sequence[Codec],
        exchange: Exchange,
        optimizer: Optimizer,
        schedule: Schedule,
        averages: MovingAverages | None,
        step: tf.Variable,
        seed: int,
        devices: Sequence[str],
        memory: Memory | None = None,
        *,
        save_request: tf.Variable | None = None,
        sequence: SequenceLock | None = None,
    ) -> None:
        """Combines the parts.

        Args:
          classifier: net, loss, parameters.
          codecs: together cover every trained variable once.
          exchange: connects this process' nodes with the others'.
          optimizer: optimizer of the classifier's variables.
          schedule: learning rate by step.
          averages: moving averages of the classifier's variables, or None.
          step: int64 scalar, number of updates done, which each step increments.
          seed: seed of codes and dropout, 64 bits.
          devices: towers; consecutive local nodes share a tower.
          memory: codecs' memory of this process' nodes; None = a new one, which is not saved.
          save_request: float32 scalar that all steps of a process share. It is 1 from
            `request_save` until all processes save, after the same step, each its own memory.
            None = the processes do not save together.
          sequence: learns when the updates of a step begin; None = nobody copies the state
            meanwhile.
        """
        self._classifier = classifier
        self._codecs = codecs
        self._exchange = exchange
        self._optimizer = optimizer
        self._schedule = schedule
        self._averages = averages
        self._step = step
        self._seed = seed_of_draws(seed)
        self._devices = devices
        self._memory = memory or Memory(codecs, exchange.first_node, exchange.local_nodes)
        self._stop = tf.Variable(0.0, trainable=False)
        self._save = save_request
        self._sequence = sequence

    def request_stop(self) -> None:
        """Tells all processes in the next step that this one was asked to stop."""
        self._stop.assign(1.0)
        self._exchange.insist()

    @property
    def saves_together(self) -> bool:
        """Whether all processes save after the same step."""
        return self._save is not None

    def request_save(self) -> None:
        """Makes all processes save after one of the next steps; needs `saves_together`."""
        self._save.assign(1.0)

    def __call__(self, images: tf.Tensor, labels: tf.Tensor) -> StepResult:
        """Trains on the process' batch: float32 [B, H, W, C], int32 [B], split over its nodes."""
        nodes = self._exchange.local_nodes
        step = self._step.read_value()
        devices = spread(self._devices, nodes)
        keys = draw_keys(self._seed, step, self._exchange.first_node, nodes)
        groups = [codec.variables for codec in self._codecs]  # each is exchanged when it exists
        computed = compute_nodes(self._classifier, images, labels, keys, devices, groups)
        gradients, losses, states = zip(*computed, strict=True)
        shared, stop, save = self._share(losses)
        aggregate = exchange_gradients(
            gradients,
            self._codecs,
            self._exchange,
            keys,
            devices,
            self._memory.read(),
            as_sums=self._optimizer.takes_sums,
        )
        statistics = self._mean_statistics(states)
        rate = self._schedule(step)
        # One operation stands for all, so that the graph has no edge for each pair of them.
        awaited = tf.group(*self._exchange.awaited(gradients))
        updates = noted_updates(self._sequence, aggregate, [*shared, stop, save, *statistics])
        with self._exchange.settled(), tf.control_dependencies([awaited]), updates:
            self._update(aggregate, rate, step)
            for variable, value in zip(self._classifier.state.values(), statistics, strict=True):
                variable.assign(value)
            self._memory.assign(self._remembered(aggregate))
            if self.saves_together:
                self._save.assign(tf.where(save, 0.0, self._save))
            self._step.assign_add(1)
            self._exchange.count_step()
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

    def _share(self, losses: Sequence[Losses]) -> tuple[Losses, tf.Tensor, tf.Tensor]:
        """Returns the mean losses over all nodes, and whether all nodes stop, and save."""
        requests = [self._stop, self._save] if self.saves_together else [self._stop]
        values = [variable.read_value() for variable in requests]
        signals = [[tf.stack([*loss, *values])] for loss in losses]
        (means,) = self._exchange.mean(signals, "losses")
        entropy, regularization, *requested = tf.unstack(means)
        save = requested[1] > 0.0 if self.saves_together else tf.constant(False)
        return Losses(entropy, regularization), requested[0] > 0.0, save

    def _remembered(self, aggregate: Aggregate) -> Memories:
        """Returns the memories after the step; gradients that had no part in it are kept whole."""
        took_part = self._exchange.took_part()
        return tf.nest.map_structure(
            lambda kept, unsent: tf.where(took_part, kept, unsent), aggregate.kept, aggregate.unsent
        )

    def _mean_statistics(self, states: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the mean moving statistics, which is exact: they are linear in a node's batch."""
        variables = self._classifier.state.values()
        if not variables:
            return []
        (row,) = self._exchange.mean([[state] for state in states], "moving statistics")
        return state_of_row(row, variables)


def noted_updates(
    sequence: SequenceLock | None, aggregate: Aggregate, others: Sequence[tf.Tensor] = ()
) -> contextlib.AbstractContextManager[None]:
    """Delays operations until a step's aggregate and other results are there, and notes that.

    Does nothing without a `sequence`: then updates begin as soon as the first results are there.
    """
    if not sequence:
        return contextlib.nullcontext()
    means = [mean for mean in aggregate.means if mean is not None]
    return sequence.updates([*means, *(sums.words for sums in aggregate.sums), *others])


def exchange_gradients(
    gradients: Sequence[Sequence[tf.Tensor]],
    codecs: Sequence[Codec],
    exchange: Exchange,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    memories: Memories = (),
    *,
    as_sums: bool = False,
) -> Aggregate:
    """Clips, scales, encodes, exchanges and decodes.

    Args:
      gradients: gradients of all variables, by local node.
      codecs: together cover every variable once.
      exchange: connects the nodes.
      keys: key of each local node's draws.
      devices: device of each local node, which measures and encodes: only codes leave it.
      memories: memories before the step, by codec and local node; empty = before the first step.
      as_sums: whether means need not be decoded, if they are sums of codes.
    """
    means: dict[int, tf.Tensor | None] = {}
    sums: list[Sums] = []
    scales, encoded, kept, unsent = [], [], [], []
    memories = memories or no_memories(codecs, len(keys))
    for codec, memory in zip(codecs, memories, strict=True):
        node, delivered = exchange_nodes(
            gradients, codec, exchange, keys, devices, memory, as_sums=as_sums
        )
        if isinstance(delivered, Sums):
            sums.append(delivered)
            delivered = [None] * len(codec.variables)
        means.update(zip(codec.variables, delivered, strict=True))
        scales.append(tf.reduce_max(tf.stack(node.scales), axis=0))
        encoded.append(node.codes[0])
        kept.append(node.kept)
        unsent.append(node.unsent)
    ordered = [means[i] for i in sorted(means)]
    return Aggregate(ordered, sums, tf.concat(scales, 0), encoded, kept, unsent)
