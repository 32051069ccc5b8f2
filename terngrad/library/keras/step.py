"""The train_step of a model that several processes train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from terngrad.library.keras import state
from terngrad.library.keras.internals import layers_of
from terngrad.library.keras.optimizer import GradientExchange, exchange_of, optimizers_of
from terngrad.library.shared import Shared
from terngrad.training.signals import SIGNALS


class SharedStep:
    """A model's train_step, followed by the means of moving statistics and of requests to stop."""

    def __init__(self, model: keras.Model, exchanges: Sequence[GradientExchange]) -> None:
        """Shares by the first of the model's exchanges."""
        self.exchange = exchanges[0]
        self._exchanges = exchanges
        self._model = model
        self._train_step: Callable = model.train_step
        self._shared = self._make_shared()
        self._own = [0.0] * (1 + len(SIGNALS))  # the values of the next, without reading it
        self._requests = tf.Variable(self._own, trainable=False)
        self._of_all = tf.Variable(tf.zeros(1 + len(SIGNALS)), trainable=False)
        self._is_first = True
        self._unbuildable: Exception | None = None  # why only the train_step can build the model

    @classmethod
    def of(cls, model: keras.Model, exchanges: Sequence[GradientExchange]) -> SharedStep:
        """Returns the model's shared step; the first call puts it into the model."""
        found = getattr(model.train_step, "__self__", None)
        if isinstance(found, cls):
            if found._exchanges == exchanges:
                return found
            model.train_step = found._train_step
        made = cls(model, exchanges)
        model.train_step = made.run
        model.train_function = None
        return made

    def run(self, data: Any) -> Any:
        """Replaces the model's train_step; is that again once the model has another optimizer."""
        held = [exchange_of(optimizer) for _, optimizer in optimizers_of(self._model)]
        if not any(exchange in held for exchange in self._exchanges):
            return self._train_step(data)
        if self._is_first:
            self._build(data)
            self._is_first = False
        if self.exchange.nodes > 1:
            return self._run_nodes(data)
        logs = self._train_step(data)
        self._share(data, [state.values(state.moving_statistics(self._model))])
        return logs

    def _build(self, data: Any) -> None:
        """Gives a model that has no weights before its first batch those of the chief."""
        if all(layer.built for layer in layers_of(self._model)):
            return
        is_eager = tf.executing_eagerly()
        has_keras_step = getattr(self._train_step, "__func__", None) is keras.Model.train_step
        if is_eager and not has_keras_step:
            return  # only it knows what the model's input is
        before = len(self._model.weights)
        try:
            if is_eager:
                inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
                self._model(inputs, training=False)  # nothing needs the outputs
            else:
                self._trace(data)
        except Exception as error:  # of the user's own code; the train_step raises it, too
            if len(self._model.weights) > before and not is_eager:
                raise  # these weights have no values
            self._unbuildable = error
            return
        group = self.exchange.group
        with tf.init_scope():
            if len(self._model.weights) > before:
                group.broadcast(self._model.weights)
                state.share_seeds(self._model, group, self.exchange.nodes)
            for exchange in self._exchanges:
                if exchange.build:
                    exchange.build()
                exchange.build = None

    def _make_shared(self) -> Shared | None:
        """Returns what shares statistics and requests; None if the exchange of gradients does."""
        group = self.exchange.group
        return group.shared(f"fit {group.count('fit')}", self.exchange.nodes)

    def _trace(self, data: Any) -> None:
        """Makes the variables of a step, outside the graph in which they would have no values."""
        specs = tf.nest.map_structure(
            lambda part: tf.type_spec_from_value(part) if tf.is_tensor(part) else part, data
        )
        step = tf.function(self._train_step, autograph=False)
        for exchange in self._exchanges:
            exchange.is_building = True
        try:
            with context.eager_mode():  # tf.init_scope would pause the step's own gradient tape
                step.get_concrete_function(specs)
        finally:
            for exchange in self._exchanges:
                exchange.is_building = False

    def _run_nodes(self, data: Any) -> Any:
        """Lets each node begin with the same moving statistics; returns the last one's logs."""
        statistics = state.moving_statistics(self._model)
        seeds = state.seed_states(self._model)
        start, by_node = state.values(statistics), []
        drawn = [seed.read_value() for seed in seeds]
        first = last = self.exchange.group.rank * self.exchange.nodes
        for node, part in enumerate(_parts(data, self.exchange.nodes)):
            last = first + node
            state.assign(statistics, start)
            state.assign_seeds(seeds, drawn, first, last)
            with self.exchange.computing(node):
                logs = self._train_step(part)
            by_node.append(state.values(state.moving_statistics(self._model)))
        state.assign_seeds(seeds, [seed.read_value() for seed in seeds], last, first)
        if len(by_node[0]) != len(start):
            raise ValueError(
                f"nodes={self.exchange.nodes}: only the model's train_step can build it; build its "
                "layers before fit"
            ) from self._unbuildable
        self._share(data, by_node)
        return logs

    def _share(self, data: Any, by_node: Sequence[Sequence[tf.Tensor]]) -> None:
        """Assigns the means of moving statistics, and what processes request."""
        # A step without a batch must not begin: its end would break the operations of others.
        with tf.control_dependencies(_tensors(data)):
            own = self._requests.read_value()
            requests, *means = self._shared.mean(*[[own, *values] for values in by_node])
        self._of_all.assign(requests)
        state.assign(state.moving_statistics(self._model), means)

    def requested(self) -> list[float]:
        """What processes requested before the last step: to stop, and by which signal."""
        return self._of_all.numpy().tolist()

    def request(self, values: Sequence[float]) -> None:
        """Sets what this process requests from the next step on."""
        if list(values) != self._own:
            self._own = list(values)
            self._requests.assign(values)

    def own_requests(self) -> list[float]:
        """What this process requests."""
        return self._own

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return self._shared.bytes_sent if self._shared else 0


def _tensors(data: Any) -> list[tf.Tensor]:
    """Returns the tensors of a batch."""
    parts = tf.nest.flatten(data, expand_composites=True)
    return [part for part in parts if tf.is_tensor(part)]


def _parts(data: Any, nodes: int) -> list[Any]:
    """Returns the batch of each node, as `Group.shard` would deal out the rows of a batch.

    Raises:
      tf.errors.InvalidArgumentError: the batch cannot be divided by `nodes`.
    """
    given = [array for array in tf.nest.flatten(data) if array is not None]
    rows = tf.shape(given[0])[0]
    tf.debugging.assert_equal(
        rows % nodes,
        0,
        f"nodes={nodes}: a batch cannot be divided by it; allowed are multiples, for the last "
        "batch, too: dataset.batch(..., drop_remainder=True)",
    )
    part = lambda node, array: None if array is None else array[node::nodes]
    return [tf.nest.map_structure(lambda a, n=n: part(n, a), data) for n in range(nodes)]
