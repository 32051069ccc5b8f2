"""The train_step of a model whose workers may join and leave: it is applied as a whole or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.keras import state
from terngrad.library.keras.optimizer import GradientExchange
from terngrad.library.keras.step import SharedStep
from terngrad.library.shared import Shared
from terngrad.training.signals import SIGNALS

_SUMMARY_BYTES = 1 << 14


class FitPosition(NamedTuple):
    """How far a training is: the next joint operation of all workers.

    Attributes:
      fit: index of the call of `fit`.
      epoch: index of the epoch.
      has_metrics: 1 where the epoch's metrics are shared already, else 0.
      batch: batches of the epoch that are made.
    """

    fit: int
    epoch: int
    has_metrics: int = 0
    batch: int = 0


class Position:
    """How far the workers are, as variables that all have in common.

    Attributes:
      fits: calls of `fit` that this process has begun.
      progress: int64 scalar, counts the joint operations. Two workers with the same number have
        the same state.
      seeds: states of random layers that are those of this worker's node, by id.
      variables: these and the rest, for the state.
    """

    def __init__(self) -> None:
        """Starts at the beginning."""
        with tf.device("/CPU:0"):
            self.fits = 0
            self.seeds: dict[int, tf.Variable] = {}
            self.progress = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._current = tf.Variable(tf.zeros(4, tf.int64), trainable=False)
            self._summary = tf.Variable(tf.zeros(_SUMMARY_BYTES, tf.uint8), trainable=False)
        self.variables = [self.progress, self._current, self._summary]

    @property
    def current(self) -> FitPosition:
        """The next joint operation."""
        return FitPosition(*self._current.numpy().tolist())

    def count_batch(self) -> None:
        """Counts a batch, within a graph."""
        self.progress.assign_add(1)
        self._current.assign_add([0, 0, 0, 1])

    def begin(self, position: FitPosition) -> None:
        """Goes to the position at which this worker's call of `fit` begins."""
        self._current.assign(position)

    def move(self, position: FitPosition) -> None:
        """Goes to the next joint operation."""
        self.progress.assign_add(1)
        self._current.assign(position)

    @property
    def summary(self) -> dict[str, Any]:
        """The results of the last epoch, for workers that missed its end."""
        text = self._summary.numpy().tobytes().rstrip(b"\0")
        return json.loads(text) if text else {}

    def set_summary(self, summary: Mapping[str, Any]) -> None:
        """Replaces the summary; leaves out its "logs" if it is too long with them."""
        text = json.dumps(summary).encode()
        if len(text) > _SUMMARY_BYTES:
            text = json.dumps({name: summary[name] for name in summary if name != "logs"}).encode()
        self._summary.assign(np.frombuffer(text.ljust(_SUMMARY_BYTES, b"\0"), np.uint8))


class ElasticStep(SharedStep):
    """A model's train_step that leaves everything as it was if it is abandoned.

    Moving statistics and requests travel with the gradients, so that a step is made on a worker
    when all of it is there. What layers and metrics change before that is copied in each step, and
    restored by `restore`.
    """

    def __init__(self, model: keras.Model, exchanges: Sequence[GradientExchange]) -> None:
        """Makes steps with the only exchange of the model."""
        super().__init__(model, exchanges)
        group = self.exchange.group
        group.fit_position = group.fit_position or Position()
        self.position: Position = group.fit_position
        self._first_node = group.rank * self.exchange.nodes
        self._applied = 0
        self._kept: list[tuple[tf.Variable, tf.Variable]] = []  # and the copies
        self._seeds: list[tuple[tf.Variable, tf.Variable]] = []  # and copies, of node 0
        self._metrics: list[tuple[tf.Variable, tf.Variable]] = []  # and copies, of this worker
        self.exchange.others = self._others

    def _make_shared(self) -> Shared | None:
        return None

    def make_variables(self, spec: Any) -> None:
        """Makes the variables that the first batch makes, with values; `spec` is its type."""
        self._trace(spec)
        self._is_first = False
        for exchange in self._exchanges:
            if exchange.build:
                exchange.build()
            exchange.build = None
        self._keep()

    def _others(self) -> list[tf.Tensor]:
        self._applied += 1
        statistics = state.values(state.moving_statistics(self._model))
        return [self._requests.read_value(), *statistics]

    def run(self, data: Any) -> Any:
        """See base class."""
        self._applied = 0
        return super().run(data)

    def _share(self, data: Any, by_node: Sequence[Sequence[tf.Tensor]]) -> None:
        """Notes that the step is made, when it is."""
        if self._applied != self.exchange.nodes:
            raise ValueError(
                f"fit: a train_step applies gradients {self._applied} times; allowed is once where "
                "workers may come and go"
            )
        found = self.exchange.means_of_others
        requests, *means = found
        with tf.control_dependencies(found):
            self._of_all.assign(requests)
            state.assign(state.moving_statistics(self._model), means)
            self._copy()
            self.position.count_batch()

    def _keep(self) -> None:
        """Makes the copies, when all variables are there."""
        pairs = lambda variables: [
            (held, tf.Variable(held.numpy(), trainable=False)) for held in map(plain, variables)
        ]
        self._kept = pairs([*state.moving_statistics(self._model), *state.counters(self._model)])
        self._seeds = pairs(state.seed_states(self._model))
        self._metrics = pairs(self._model.metrics_variables)

    def _copy(self) -> None:
        for held, copy in [*self._kept, *self._metrics]:
            copy.assign(held.read_value())
        for held, copy in self._seeds:
            copy.assign(state.of_node(held.read_value(), self._first_node))

    def copy(self) -> None:
        """Copies the state of layers and metrics, as that of the last whole step."""
        self._copy()
        for held, copy in self._seeds:
            if id(held) not in self.position.seeds:  # as the layers were made
                copy.assign(held)

    def restore(self) -> None:
        """Restores layers and metrics to the last whole step."""
        for held, copy in [*self._kept, *self._metrics]:
            held.assign(copy)
        for held, copy in self._seeds:
            held.assign(state.of_node(copy, self._first_node))
            self.position.seeds[id(held)] = held

    def state(self, optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
        """Returns all that the workers have in common, the progress first."""
        steps = [reducer.state.step for reducer in self.exchange.reducers.values()]
        copies = {id(held): copy for held, copy in self._kept}
        weights = [plain(v) for v in [*self._model.weights, *optimizer.variables]]
        found = [
            *self.position.variables,
            self._of_all,
            *steps,
            *(copies.get(id(v), v) for v in weights),
            *(copy for _, copy in [*self._kept, *self._seeds]),
        ]
        return list({id(v): v for v in found}.values())

    def request(self, values: Sequence[float]) -> None:
        """See base class; steps that need no more than some workers then wait for this one."""
        if any(values) and list(values) != self.own_requests():
            for reducer in self.exchange.reducers.values():
                reducer.require_in_next_step()
        super().request(values)

    def forget_requests(self) -> None:
        """Begins without a request to stop."""
        self._of_all.assign(tf.zeros(1 + len(SIGNALS)))
        self.request([0.0] * (1 + len(SIGNALS)))
