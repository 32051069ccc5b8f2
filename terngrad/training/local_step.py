"""Local steps: each node makes several steps of its own, then all exchange what these changed.

A round is H inner steps and one outer step, as in DiLoCo (Douillard et al. 2023, Algorithm 1). Each
node begins its round with the shared weights, and makes H steps of its inner optimizer. Its delta,
weights before - weights now, is exchanged as a gradient is. The outer optimizer, Nesterov's
momentum, applies the mean delta to the shared weights.

The weights of inner steps are values within the round, not variables. So a round changes nothing
before its exchange is over: it can be given up, repeated and saved as a step can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier, Losses, Parameters
from terngrad.training.memory import Memory
from terngrad.training.nodes import draw_keys, dropout_seed, row_of
from terngrad.training.optimizers import Momentum, Optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.schedules import Schedule
from terngrad.training.step import Step, StepResult

TakeBatch = Callable[[], tuple[tf.Tensor, ...]]


class _Node(NamedTuple):
    """A node's own values within a round.

    Attributes:
      parameters: weights, and moving statistics.
      slots: of its inner optimizer, by slot, then by variable.
      losses: sums over the inner steps so far.
    """

    parameters: Parameters
    slots: list[list[tf.Tensor]]
    losses: Losses


class LocalStep(Step):
    """A round: inner steps -> shared mean delta -> outer update."""

    def __init__(
        self,
        classifier: Classifier,
        reduction: Reduction,
        inner: Sequence[Optimizer],
        outer: Momentum,
        schedule: Schedule,
        averages: MovingAverages | None,
        step: tf.Variable,
        *,
        local_steps: int,
        outer_rate: float,
        save_request: tf.Variable | None = None,
    ) -> None:
        """Combines the parts; for those that are not named here see `TrainStep`.

        Args:
          classifier: net, loss, parameters.
          reduction: reduces the deltas, and counts the rounds.
          inner: the optimizer of each local node. Their slots differ between the nodes.
          outer: of the classifier's variables, which are the shared weights.
          schedule: learning rate of the inner optimizer by inner step.
          averages: made with a stride of H; see `MovingAverages`.
          step: int64 scalar, number of inner steps made.
          local_steps: H, inner steps of a round.
          outer_rate: learning rate of the outer optimizer.
          save_request: see `TrainStep`.
        """
        super().__init__(classifier, reduction, schedule, averages, save_request)
        self._inner, self._outer = inner, outer
        self._inner_step = step
        self._local_steps, self._outer_rate = local_steps, outer_rate

    def __call__(self, take: TakeBatch) -> StepResult:
        """Makes a round with the process' next H batches, each split over its nodes.

        Args:
          take: returns the next batch: float32 [B, H, W, C], int32 [B].

        Returns:
          Losses averaged over inner steps and nodes, the rate of the last inner step, and in the
          place of gradients the deltas.
        """
        reduction, first = self._reduction, self._inner_step.read_value()
        nodes, rate = self._make_inner_steps(take, first)
        before = [v.read_value() for v in self._classifier.variables]
        deltas = [
            [old - new for old, new in zip(before, node.parameters.weights, strict=True)]
            for node in nodes
        ]
        count = float(self._local_steps)
        shared, stop, save = self._share([Losses(*(v / count for v in n.losses)) for n in nodes])
        keys = reduction.keys(reduction.step.read_value())
        aggregate = reduction.reduce(deltas, keys)
        statistics = self._mean_statistics([row_of(node.parameters.state) for node in nodes])
        with reduction.updates(aggregate, deltas, [*shared, stop, save, *statistics]):
            self._outer.apply(aggregate.means, self._outer_rate, first)
            if self._averages:
                self._averages.update(first)
            self._assign_shared(statistics, save)
            self._assign_slots(nodes)
            self._inner_step.assign_add(self._local_steps)
        return StepResult(shared, stop, save, rate, deltas[0], aggregate)

    def _make_inner_steps(self, take: TakeBatch, first: tf.Tensor) -> tuple[list[_Node], tf.Tensor]:
        """Returns each node's values after the inner steps, and the last learning rate."""

        def body(i: tf.Tensor, nodes: list[_Node], rate: tf.Tensor):
            del rate
            step = first + i
            rate = self._schedule(step)
            return i + 1, self._make_inner_step(take, nodes, rate, step), rate

        many = tf.constant(self._local_steps, tf.int64)
        start = tf.constant(0, tf.int64), [self._start(each) for each in self._inner], tf.zeros([])
        _, nodes, rate = tf.while_loop(lambda i, *_: i < many, body, start, parallel_iterations=1)
        return nodes, rate

    def _start(self, optimizer: Optimizer) -> _Node:
        read = lambda variables: [variable.read_value() for variable in variables]
        parameters = Parameters(
            read(self._classifier.variables), read(self._classifier.state.values())
        )
        zero = tf.zeros([])
        return _Node(parameters, list(map(read, optimizer.slots.values())), Losses(zero, zero))

    def _make_inner_step(
        self, take: TakeBatch, nodes: Sequence[_Node], rate: tf.Tensor, step: tf.Tensor
    ) -> list[_Node]:
        reduction, found = self._reduction, []
        keys = draw_keys(reduction.seed, step, reduction.first_node, len(nodes))
        batch = [tf.reshape(each, [len(nodes), -1, *each.shape[1:]]) for each in take()]
        for i, (node, optimizer) in enumerate(zip(nodes, self._inner, strict=True)):
            own = [each[i] for each in batch]
            with tf.device(reduction.devices[i]):
                gradients, losses, state = self._classifier.gradients(
                    *own, dropout_seed(keys[i]), node.parameters
                )
                weights, slots = optimizer.updated(
                    node.parameters.weights, node.slots, gradients, rate, step
                )
                sums = Losses(*(a + b for a, b in zip(node.losses, losses, strict=True)))
            found.append(_Node(Parameters(weights, list(state)), slots, sums))
        return found

    def _assign_slots(self, nodes: Sequence[_Node]) -> None:
        for optimizer, node in zip(self._inner, nodes, strict=True):
            for variables, values in zip(optimizer.slots.values(), node.slots, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)


def keep_slots(
    memory: Memory, optimizers: Sequence[Optimizer], names: Sequence[str], first_node: int
) -> None:
    """Saves the slots of inner optimizers with the memory of a process' nodes.

    Args:
      memory: gets the variables "slots/NODE/SLOT/NAME".
      optimizers: of the nodes.
      names: of the trained variables.
      first_node: global index of the first node.
    """
    for node, optimizer in enumerate(optimizers, first_node):
        for slot, variables in optimizer.slots.items():
            named = {f"slots/{node}/{slot}/{n}": v for n, v in zip(names, variables, strict=True)}
            memory.add(named, optimizer.starts[slot])
