"""Optimizers of Keras that exchange gradients before they apply them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from terngrad.layout import DEFAULT_BUCKET_ELEMENTS
from terngrad.library.group import Group, plain
from terngrad.library.keras_exchange import GradientExchange, is_float_on_cpu, kinds_of, parts_of
from terngrad.library.keras_updates import has_momentum, is_fused
from terngrad.library.reducer import Gradient, check_settings

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)

_STATE = "_terngrad"  # attribute of a distributed optimizer
_LEAST_EPSILON = 1e-16  # of Adafactor: smaller products of a row's and a column's are 0
# Keras tracks what is assigned to its objects, and `Exchanging` has a `__class__` of its own. This
# is the `__class__` below both.
_CLASS = vars(object)["__class__"]


def distribute(
    optimizer: Optimizer,
    group: Group,
    *,
    gradients: str | type = "ternary",
    clip_factor: float = 2.5,
    size_to_binarize: int = 1,
    float_layers: Sequence[str] = (),
    seed: int = 1,
    nodes: int = 1,
    bucket_elements: int = DEFAULT_BUCKET_ELEMENTS,
) -> Optimizer:
    """Makes an optimizer apply the mean gradients of all processes; returns the same optimizer.

    The exchange comes before all that the optimizer does with gradients, such as clipping, so that
    the optimizer sees what one process with the whole batch would show it. An optimizer that
    accumulates gradients exchanges their sum, only when an update is due. Models that use the
    optimizer are saved, and loaded elsewhere, as with the optimizer alone.

    Distribute the outermost optimizer: a LossScaleOptimizer or a MultiOptimizer, not one within it.

    Args:
      optimizer: any optimizer of Keras, or a subclass of one.
      group: the processes, from `terngrad.join`.
      gradients: "ternary", "float32", "float16" or a codec; see `terngrad.Reducer`.
      clip_factor: clip a gradient to this many standard deviations before it is encoded; 0 = no
        clipping.
      size_to_binarize: variables with fewer elements stay float.
      float_layers: layers whose variables stay float: the part of a variable's `path` before the
        last "/".
      seed: of the random codes; all processes need the same.
      nodes: into how many parts `Together` splits each batch of this process. Each part is the
        batch of a node, whose gradients are encoded by themselves: one process of N nodes trains as
        N processes of one node do.
      bucket_elements: a bucket takes variables until it holds this many values.

    Raises:
      TypeError: `optimizer` is none of Keras, or a setting has another type.
      ValueError: a setting is wrong, the optimizer is distributed already or accumulates gradients
        of several nodes, or Keras does not run on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"distribute: Keras runs on {keras.backend.backend()}; allowed is tensorflow: set "
            "KERAS_BACKEND=tensorflow"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"distribute: the optimizer is {optimizer!r}; allowed are objects of the classes in "
            "keras.optimizers, such as keras.optimizers.Adam(1e-3)"
        )
    if exchange_of(optimizer) is not None:
        raise ValueError(f"distribute: the optimizer {optimizer.name} is distributed already")
    if nodes > 1 and optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"distribute: nodes is {nodes}; an optimizer with gradient_accumulation_steps adds up "
            "the gradients of one node: allowed is 1"
        )
    kinds = [type(part).__name__ for part in parts_of(optimizer) if _is_faint(part)]
    if kinds and gradients == "ternary" and group.is_chief:
        warnings.warn(
            f"distribute: {kinds[0]} with an epsilon_1 below {_LEAST_EPSILON} makes weights NaN "
            "where a row and a column of a gradient are all zero, as often in ternary ones; take "
            "epsilon_1=1e-12",
            stacklevel=2,
        )
    settings = {
        "gradients": gradients,
        "clip_factor": clip_factor,
        "size_to_binarize": size_to_binarize,
        "float_layers": float_layers,
        "seed": seed,
        "nodes": nodes,
        "bucket_elements": bucket_elements,
    }
    check_settings(**settings)
    settings["float_layers"] = tuple(float_layers)
    _attach(optimizer, GradientExchange(group, settings))
    return optimizer


def exchange_of(optimizer: Any) -> GradientExchange | None:
    """Returns what exchanges an optimizer's gradients; None if it is not distributed."""
    return vars(optimizer).get(_STATE) if isinstance(optimizer, Exchanging) else None


def lift(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Moves the exchange from the optimizer within a LossScaleOptimizer to the latter.

    `model.compile` puts a LossScaleOptimizer around the optimizer of a model in mixed float16. It
    skips steps whose gradients are not finite: all processes must see the same ones.
    """
    inner = optimizer.inner_optimizer
    state = vars(inner).pop(_STATE)
    _CLASS.__set__(inner, inner.__class__)
    state.is_within = False
    _attach(optimizer, state)


class Exchanging:
    """The base, before the optimizer's own class, of the class of a distributed optimizer."""

    @property
    def __class__(self) -> type:
        """The optimizer's own class, by which Keras saves it: a loaded one is not distributed."""
        return type(self).__bases__[1]

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a new optimizer of the own class, which is not distributed."""
        return cls.__bases__[1].from_config(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        # Of all that sets it, only an optimizer around this one does so after `distribute`.
        if name == "loss_scale_factor" and value is None and _STATE in vars(self):
            vars(self)[_STATE].is_within = True
        super().__setattr__(name, value)

    def apply(self, grads: Sequence[Gradient], trainable_variables: Any = None) -> None:
        """Applies the mean gradients of all processes; see `keras.optimizers.Optimizer.apply`."""
        exchange: GradientExchange = vars(self)[_STATE]
        _check_outermost(exchange)
        if trainable_variables is None and self.built:
            trainable_variables = self._trainable_variables
        if trainable_variables is None or not len(grads):
            super().apply(grads, trainable_variables)  # which raises, or does nothing
            return
        variables = list(trainable_variables)
        grads = list(grads)
        if exchange.is_building:  # slots may begin as weights, of which the chief's come later
            if not self.built:
                exchange.build = exchange.build or functools.partial(self.build, variables)
            return
        if len(grads) != len(variables):
            raise ValueError(
                f"apply: {len(grads)} gradients; allowed are {len(variables)}, one a variable"
            )
        if self.gradient_accumulation_steps:
            self._apply_accumulated(exchange, grads, variables)
        elif (by_node := exchange.of_all_nodes(grads)) is not None:
            means = exchange.means(self, by_node, variables)
            # Also what needs no mean, such as the count of updates and the decay of weights, comes
            # after the note that updates begin.
            first, exchange.first = exchange.first, []
            with tf.control_dependencies(first):
                super().apply(means, variables)

    def _apply_accumulated(
        self, exchange: GradientExchange, grads: list[Gradient], variables: list[Any]
    ) -> None:
        coded, copied = kinds_of(grads, variables)
        exchange.reducer(self, [variables[i] for i in coded])  # not within the branch of an update
        exchange.due = None
        super().apply(exchange.largest(grads, copied), variables)
        if exchange.due is None:
            name = self.__class__.__name__
            raise TypeError(
                f"{name} accumulates gradients in a way of its own, so the exchange does not know "
                "when an update is due; allowed is gradient_accumulation_steps=None with it"
            )

    def _backend_update_step(self, grads, trainable_variables, learning_rate) -> None:
        exchange: GradientExchange = vars(self)[_STATE]
        if is_fused(self):
            left = exchange.fused_update(self, grads, trainable_variables, learning_rate)
            grads = [grads[i] for i in left]
            trainable_variables = [trainable_variables[i] for i in left]
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates a variable as the optimizer's own class does, bit for bit.

        Momentum takes one kernel. Keras' four operations take twice the time, each with a pass of
        its own over memory.
        """
        if has_momentum(self) and is_float_on_cpu(variable):
            velocity = self.momentums[self._get_variable_index(variable)]
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle,
                accum=plain(velocity).handle,
                lr=keras.ops.cast(learning_rate, variable.dtype),
                grad=keras.ops.cast(gradient, variable.dtype),
                momentum=self.momentum,
                use_nesterov=self.nesterov,
            )
        else:
            super().update_step(gradient, variable, learning_rate)

    def _backend_apply_gradients(self, grads, trainable_variables) -> None:
        vars(self)[_STATE].due = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        # The first that Keras does with accumulated gradients, in the branch of a due update.
        if self.gradient_accumulation_steps:
            exchange: GradientExchange = vars(self)[_STATE]
            grads = exchange.means(self, [grads], exchange.due)
        return super()._clip_gradients(grads)


def _attach(optimizer: keras.optimizers.Optimizer, state: GradientExchange) -> None:
    own = type(optimizer)
    name, module = own.__name__, own.__module__
    made = type(name, (Exchanging, own), {"__module__": module, "__doc__": own.__doc__})
    vars(optimizer)[_STATE] = state
    _CLASS.__set__(optimizer, made)


def _is_faint(optimizer: keras.optimizers.Optimizer) -> bool:
    is_adafactor = isinstance(optimizer, keras.optimizers.Adafactor)
    return is_adafactor and optimizer.epsilon_1 < _LEAST_EPSILON


def _check_outermost(exchange: GradientExchange) -> None:
    """Raises ValueError if another optimizer uses this one, and would not see the means."""
    if exchange.is_within and exchange.group.size > 1:
        raise ValueError(
            "a LossScaleOptimizer or MultiOptimizer is around the distributed optimizer: "
            "distribute the outermost one, distribute(LossScaleOptimizer(optimizer), group)"
        )
