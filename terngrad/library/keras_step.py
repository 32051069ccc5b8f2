"""The train_step of a model that several processes train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from terngrad.library.group import plain
from terngrad.library.keras_optimizer import GradientExchange
from terngrad.library.keras_signals import SIGNALS
from terngrad.library.shared import Shared


class SharedStep:
    """A model's train_step, followed by the means of moving statistics and of wishes to stop."""

    def __init__(self, model: keras.Model, exchange: GradientExchange) -> None:
        self.exchange = exchange
        self._model = model
        self._train_step: Callable = model.train_step
        self._shared = Shared(exchange.group, f"fit {exchange.group.count('fit')}", exchange.nodes)
        self._told = [0.0] * (1 + len(SIGNALS))  # the values of the next, without reading it
        self._wishes = tf.Variable(self._told, trainable=False)
        self._heard = tf.Variable(tf.zeros(1 + len(SIGNALS)), trainable=False)
        self._is_first = True
        self._unbuildable: Exception | None = None  # why only the train_step can build the model

    @classmethod
    def of(cls, model: keras.Model, exchange: GradientExchange) -> SharedStep:
        """Returns the model's shared step; the first call puts it into the model."""
        found = getattr(model.train_step, "__self__", None)
        if isinstance(found, cls):
            if found.exchange is exchange:
                return found
            model.train_step = found._train_step
        made = cls(model, exchange)
        model.train_step = made.run
        model.train_function = None
        return made

    def run(self, data: Any) -> Any:
        """Replaces the model's train_step."""
        if self._is_first:
            self._build(data)
            self._is_first = False
        if self.exchange.nodes > 1:
            return self._run_nodes(data)
        logs = self._train_step(data)
        self._share(data, [_values(moving_statistics(self._model))])
        return logs

    def _build(self, data: Any) -> None:
        """Gives a model that has no weights before its first batch those of the chief."""
        if all(layer.built for layer in self._model._flatten_layers()):
            return
        if getattr(self._train_step, "__func__", None) is not keras.Model.train_step:
            return  # only it knows what the model's input is
        before = len(self._model.weights)
        try:
            inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
            self._model(inputs, training=False)  # nothing needs the outputs
        except Exception as error:  # of the user's own code; the train_step raises it, too
            self._unbuildable = error
            return
        if len(self._model.weights) > before:
            with tf.init_scope():
                self.exchange.group.broadcast(self._model.weights)

    def _run_nodes(self, data: Any) -> Any:
        """Lets each node begin with the same moving statistics; returns the last one's logs."""
        statistics = moving_statistics(self._model)
        start, by_node = _values(statistics), []
        for node, part in enumerate(_parts(data, self.exchange.nodes)):
            _assign(statistics, start)
            with self.exchange.computing(node):
                logs = self._train_step(part)
            by_node.append(_values(moving_statistics(self._model)))
        if len(by_node[0]) != len(start):
            raise ValueError(
                f"nodes={self.exchange.nodes}: only the model's train_step can build it; build its "
                "layers before fit"
            ) from self._unbuildable
        self._share(data, by_node)
        return logs

    def _share(self, data: Any, by_node: Sequence[Sequence[tf.Tensor]]) -> None:
        """Assigns the means of moving statistics, and hears what processes wish."""
        # A step without a batch must not begin: its end would break the operations of others.
        with tf.control_dependencies(_tensors(data)):
            own = self._wishes.read_value()
            wishes, *means = self._shared.mean(*[[own, *values] for values in by_node])
        self._heard.assign(wishes)
        _assign(moving_statistics(self._model), means)

    def heard(self) -> list[float]:
        """What processes wished before the last step: to stop, and by which signal."""
        return self._heard.numpy().tolist()

    def tell(self, wishes: Sequence[float]) -> None:
        """Sets what this process wishes from the next step on."""
        if list(wishes) != self._told:
            self._told = list(wishes)
            self._wishes.assign(wishes)

    def told(self) -> list[float]:
        """What this process wishes."""
        return self._told

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return self._shared.bytes_sent


def _tensors(data: Any) -> list[tf.Tensor]:
    """Returns the tensors of a batch."""
    parts = tf.nest.flatten(data, expand_composites=True)
    return [part for part in parts if tf.is_tensor(part)]


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Returns float variables that layers change by themselves, such as those of batch norm."""
    # A layer's own ones: its public lists also hold frozen weights, and those of layers within.
    own = [v for n in model._flatten_layers() if n.trainable for v in n._non_trainable_variables]
    floats = [v for v in own if "float" in keras.backend.standardize_dtype(v.dtype)]
    return list({id(v): v for v in floats}.values())


def _values(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    return [plain(variable).read_value() for variable in variables]


def _assign(variables: Sequence[keras.Variable], values: Sequence[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        plain(variable).assign(value)


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
