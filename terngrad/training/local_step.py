"""Local steps: each node makes several steps of its own, then all exchange what these changed.

A round is H inner steps and one outer step, as in DiLoCo (Douillard et al. 2023, Algorithm 1). Each
node begins its round with the shared weights, and makes H steps of its inner optimizer. Its delta,
weights before - weights now, is exchanged as a gradient is. The outer optimizer, Nesterov's
momentum, applies the mean delta to the shared weights.

With F fragments the net's variables are shared out (`make_fragments`), and after each H / F inner
steps one fragment is exchanged, in turn, as in Streaming DiLoCo (Douillard et al. 2025,
without its low precision). The delta of a fragment is that of the H steps since its last exchange.
A node keeps its own weights of the other fragments.

An exchange may overlap with the next inner steps: what is exchanged is then the delta as it was
when these began. At their end the node's weights are the new shared ones - what it has changed
meanwhile, which is the beginning of its next delta. So shared weights - own weights always is what
a node has not yet exchanged, and nothing else needs to be kept. Streaming DiLoCo mixes own and
shared weights instead, and so drops a part of a node's own steps.

Inner steps update copies, which each round makes anew. So a round changes nothing that counts
before its exchange is over: it can be given up, repeated and saved as a step can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier, Losses, Parameters
from terngrad.training.memory import Memory
from terngrad.training.nodes import draw_keys, dropout_seed, row_of
from terngrad.training.optimizers import Momentum, Optimizer
from terngrad.training.reduction import Aggregate, Reduction
from terngrad.training.schedules import Schedule
from terngrad.training.step import Step, StepResult

TakeBatch = Callable[[], tuple[tf.Tensor, ...]]


class InnerOptimizer:
    """The optimizer of a node's inner steps, and the weights that it updates.

    Attributes:
      slots: by slot name, one variable for each weight, as after the last exchange.
      starts: the initial value of each slot, by name.
      shared: the weights that all nodes share.
      has_own_weights: whether the node's weights after an exchange are its own: with fragments,
        or if exchanges overlap with inner steps.
      updates: int64 scalar, inner steps since the slots began, by which Adam corrects its moments;
        fewer than the training's in a worker that joined late.
      counts_updates: whether the optimizer needs them.
      kept: the node's weights after the last exchange; without its own the shared ones.
    """

    def __init__(
        self,
        make: Callable[[Sequence[tf.Variable]], Optimizer],
        variables: Sequence[tf.Variable],
        device: str = "",
        *,
        has_own_weights: bool = False,
    ) -> None:
        """Copies `variables`, the shared weights, for the optimizer that `make` returns."""
        self.shared, self.has_own_weights = variables, has_own_weights
        copied = lambda values: [tf.Variable(v.read_value(), trainable=False) for v in values]
        with tf.device(device):
            self._weights = copied(variables)
            self.kept = copied(variables) if has_own_weights else variables
            self._optimizer = make(self._weights)
            self.slots = {name: copied(v) for name, v in self._optimizer.slots.items()}
        self.updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.counts_updates = self._optimizer.depends_on_step
        self.starts = self._optimizer.starts

    def begin(self) -> None:
        """Begins with the weights and the slots as after the last exchange."""
        _assign(self._weights, self.kept)
        for name, slots in self.slots.items():
            _assign(self._optimizer.slots[name], slots)

    def weights(self) -> list[tf.Tensor]:
        """Returns the node's weights."""
        return [weight.read_value() for weight in self._weights]

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, made: tf.Tensor) -> None:
        """Makes an inner step, after as many others since `begin`; see `Optimizer.apply`."""
        with tf.control_dependencies(gradients):  # the backward pass still needs the weights
            self._optimizer.apply(gradients, rate, self.updates + made)

    def keep(self, count: int, exchanged: Collection[int], *, overlaps: bool) -> None:
        """Ends inner steps that count.

        Args:
          count: number of inner steps.
          exchanged: indices of the shared weights, which have changed since.
          overlaps: whether the exchange was of what these inner steps began with, so that what they
            have changed is kept.
        """
        self.updates.assign_add(count)
        for name, slots in self.slots.items():
            _assign(slots, self._optimizer.slots[name])
        if not self.has_own_weights:
            return
        for i, (kept, own) in enumerate(zip(self.kept, self._weights, strict=True)):
            new = own.read_value()
            if i in exchanged:
                new = self.shared[i] + (new - kept) if overlaps else self.shared[i].read_value()
            kept.assign(new)


class _Node(NamedTuple):
    """The loop state of a node's inner steps: moving statistics, and sums of losses so far."""

    state: list[tf.Tensor]
    losses: Losses


class LocalStep(Step):
    """Inner steps -> shared mean delta of all weights, or of a fragment -> its outer update."""

    def __init__(
        self,
        classifier: Classifier,
        reduction: Reduction,
        inner: Sequence[InnerOptimizer],
        outer: Momentum,
        schedule: Schedule,
        averages: MovingAverages | None,
        step: tf.Variable,
        *,
        local_steps: int,
        outer_rate: float,
        overlaps: bool,
        save_request: tf.Variable | None = None,
    ) -> None:
        """Combines the parts; for those that are not named here see `TrainStep`.

        Args:
          classifier: net, loss, parameters.
          reduction: reduces the deltas, and counts the exchanges. Its codecs' variables are those
            that are exchanged: all, or a fragment's.
          inner: of each local node. Their slots differ between the nodes.
          outer: of the classifier's variables, which are the shared weights.
          schedule: learning rate of the inner optimizer by inner step.
          averages: made with a stride of H; see `MovingAverages`.
          step: int64 scalar, number of inner steps made.
          local_steps: inner steps before the exchange: H, or H / F with fragments.
          outer_rate: learning rate of the outer optimizer.
          overlaps: whether the exchange is of the deltas as they are before the inner steps, which
            are made at the same time. The inner optimizers then have their own weights.
          save_request: see `TrainStep`.
        """
        super().__init__(classifier, reduction, schedule, averages, save_request)
        self._inner, self._outer = inner, outer
        self._inner_step = step
        self._local_steps, self._outer_rate = local_steps, outer_rate
        self._overlaps = overlaps
        self._exchanged = sorted(i for codec in reduction.codecs for i in codec.variables)

    def __call__(self, take: TakeBatch) -> StepResult:
        """Makes the inner steps with the process' next batches, each split over its nodes.

        Args:
          take: returns the next batch: float32 [B, H, W, C], int32 [B].

        Returns:
          Losses averaged over inner steps and nodes, the rate of the last inner step, and in the
          place of gradients the deltas.
        """
        reduction, first = self._reduction, self._inner_step.read_value()
        # Nothing of the inner steps depends on this exchange, so TensorFlow makes both at once.
        early = self._exchange_deltas() if self._overlaps else None
        nodes, rate = self._make_inner_steps(take, first)
        count = float(self._local_steps)
        shared, stop, save = self._share([Losses(*(v / count for v in n.losses)) for n in nodes])
        deltas, aggregate = early or self._exchange_deltas()
        statistics = self._mean_statistics([row_of(node.state) for node in nodes])
        others = [*shared, stop, save, *statistics]
        # The means may be there before the inner steps are over, which may fail.
        made = tf.control_dependencies(others if self._overlaps else [])
        with made, reduction.updates(aggregate, deltas, others):
            self._update(aggregate, first)
            self._assign_shared(statistics, save)
            for own in self._inner:
                own.keep(self._local_steps, self._exchanged, overlaps=self._overlaps)
            self._inner_step.assign_add(self._local_steps)
        return StepResult(shared, stop, save, rate, deltas[0], aggregate)

    def _exchange_deltas(self) -> tuple[list[list[tf.Tensor]], Aggregate]:
        """Returns each node's deltas of all weights, as they are now, and their exchange."""
        before = [v.read_value() for v in self._classifier.variables]
        deltas = []
        for own in self._inner:
            now = [v.read_value() for v in own.kept] if self._overlaps else own.weights()
            deltas.append([old - new for old, new in zip(before, now, strict=True)])
        reduction = self._reduction
        return deltas, reduction.reduce(deltas, reduction.keys(reduction.step.read_value()))

    def _update(self, aggregate: Aggregate, first: tf.Tensor) -> None:
        """Makes the outer step, and updates the moving averages of what has changed."""
        means = dict(zip(self._exchanged, aggregate.means, strict=True))
        every = range(len(self._classifier.variables))
        self._outer.apply([means.get(i) for i in every], self._outer_rate, first)
        if averages := self._averages:
            averages.update(first + (self._local_steps - averages.stride), self._exchanged)

    def _make_inner_steps(self, take: TakeBatch, first: tf.Tensor) -> tuple[list[_Node], tf.Tensor]:
        """Makes the inner steps; returns the state of each node, and the last rate."""

        def body(i: tf.Tensor, nodes: list[_Node], rate: tf.Tensor):
            del rate
            rate = self._schedule(first + i)
            return i + 1, self._make_inner_step(take, nodes, rate, first, i), rate

        for own in self._inner:
            own.begin()
        many = tf.constant(self._local_steps, tf.int64)
        nodes = [self._start() for _ in self._inner]
        _, nodes, rate = tf.while_loop(
            lambda i, *_: i < many,
            body,
            (tf.constant(0, tf.int64), nodes, tf.zeros([])),
            parallel_iterations=1,
        )
        return nodes, rate

    def _start(self) -> _Node:
        state = [variable.read_value() for variable in self._classifier.state.values()]
        return _Node(state, Losses(tf.zeros([]), tf.zeros([])))

    def _make_inner_step(
        self,
        take: TakeBatch,
        nodes: Sequence[_Node],
        rate: tf.Tensor,
        first: tf.Tensor,
        made: tf.Tensor,
    ) -> list[_Node]:
        reduction, found = self._reduction, []
        keys = draw_keys(reduction.seed, first + made, reduction.first_node, len(nodes))
        batch = [tf.reshape(each, [len(nodes), -1, *each.shape[1:]]) for each in take()]
        for i, (node, own) in enumerate(zip(nodes, self._inner, strict=True)):
            images, labels = (each[i] for each in batch)
            with tf.device(reduction.devices[i]):
                gradients, losses, state = self._classifier.gradients(
                    images, labels, dropout_seed(keys[i]), Parameters(own.weights(), node.state)
                )
                own.apply(gradients, rate, made)
                sums = Losses(*(a + b for a, b in zip(node.losses, losses, strict=True)))
            found.append(_Node(list(state), sums))
        return found


def _assign(variables: Sequence[tf.Variable], values: Sequence[tf.Variable]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value.read_value())


def keep_inner_state(
    memory: Memory, optimizers: Sequence[InnerOptimizer], names: Sequence[str], first_node: int
) -> None:
    """Saves the state of inner optimizers with the memory of a process' nodes.

    Args:
      memory: gets the variables "slots/NODE/SLOT/NAME", with Adam "updates/NODE", and where nodes
        have their own weights "weights/NODE/NAME".
      optimizers: of the nodes.
      names: of the trained variables.
      first_node: global index of the first node.
    """
    for node, optimizer in enumerate(optimizers, first_node):
        for slot, variables in optimizer.slots.items():
            named = {f"slots/{node}/{slot}/{n}": v for n, v in zip(names, variables, strict=True)}
            memory.add(named, optimizer.starts[slot])
        if optimizer.counts_updates:
            memory.add({f"updates/{node}": optimizer.updates})
        if optimizer.has_own_weights:
            named = {f"weights/{node}/{n}": v for n, v in zip(names, optimizer.kept, strict=True)}
            memory.add(named, optimizer.shared)


def make_fragments(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Shares out whole variables, so that all fragments have about as many values.

    The largest variable goes first, each to the fragment that has the fewest values so far; among
    equals the first one counts. So no fragment has more values than another and one variable of it.

    Args:
      sizes: number of values of each variable.
      count: number of fragments.

    Returns:
      The indices of the variables of each fragment, sorted.

    Raises:
      ValueError: there are more fragments than variables.
    """
    if not 1 <= count <= len(sizes):
        raise ValueError(
            f"{count} fragments of {len(sizes)} trained variables; allowed are 1 to {len(sizes)}"
        )
    fragments: list[list[int]] = [[] for _ in range(count)]
    values = [0] * count
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = min(range(count), key=lambda f: (values[f], len(fragments[f])))
        fragments[least].append(i)
        values[least] += sizes[i]
    return [sorted(fragment) for fragment in fragments]
