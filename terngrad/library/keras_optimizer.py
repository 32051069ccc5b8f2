"""Optimizers of Keras that exchange gradients before they apply them."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from terngrad.layout import DEFAULT_BUCKET_ELEMENTS
from terngrad.library.group import Group, plain
from terngrad.library.keras_updates import has_momentum, is_fused, slots_of, update_of
from terngrad.library.reducer import Gradient, Reduced, Reducer, check_settings
from terngrad.library.shared import Shared
from terngrad.ops.kernels import Kernels

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)

_STATE = "_terngrad"  # attribute of a distributed optimizer
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


class GradientExchange:
    """What a distributed optimizer needs beside its own variables.

    Attributes:
      group: the processes.
      nodes: number of nodes of this process.
      is_within: whether another optimizer of Keras uses this one.
      is_building: whether a train_step is being traced only to create its variables.
      build: builds the optimizer for the variables of the traced step.
      due: variables of the accumulated gradients that are about to be applied.
      reducers: by the keys of the variables that they serve.
      memory_folder: where this process saves what codecs keep between steps; "" = nowhere.
    """

    def __init__(self, group: Group, settings: dict[str, Any]) -> None:
        """Makes reducers with these settings when the variables are known."""
        self.group = group
        self.nodes: int = settings["nodes"]
        self.is_within = False
        self.is_building = False
        self.build: Callable[[], None] | None = None
        self.due: Sequence[Any] | None = None
        self.reducers: dict[tuple[str, ...], Reducer] = {}
        self.memory_folder = ""
        self._settings = settings
        self._node: int | None = None  # whose train_step is being called
        self._given: list[list[Gradient]] = []  # by the nodes of this step so far
        self._reduced: tuple[Kernels, Reduced] | None = None  # of the update under way
        self._index = group.count("optimizer")
        self._shared: Shared | None = None

    @contextlib.contextmanager
    def computing(self, node: int) -> Iterator[None]:
        """Marks the train_step of one of several nodes, of which the last one applies the means.

        Raises:
          ValueError: it does not apply gradients exactly once.
        """
        self._node, self._given = node, self._given if node else []
        try:
            yield
        finally:
            self._node = None
        if len(self._given) != node + 1:
            raise _not_once(self.nodes)

    def of_all_nodes(self, gradients: list[Gradient]) -> list[list[Gradient]] | None:
        """Adds a node's gradients; returns those of all nodes after the last one, else None."""
        if self.nodes == 1:
            return [gradients]
        if self._node is None:
            raise ValueError(
                f"nodes={self.nodes} needs fit with callbacks=[Together(group)], which splits the "
                f"batch; a loop of your own needs terngrad.Reducer(..., nodes={self.nodes})"
            )
        if len(self._given) != self._node:
            raise _not_once(self.nodes)
        self._given.append(gradients)
        return self._given if len(self._given) == self.nodes else None

    def means(
        self, optimizer: keras.optimizers.Optimizer, by_node: Sequence[list[Gradient]], variables
    ) -> list[Gradient]:
        """Returns mean gradients, and None where a gradient is None.

        Values that Keras passes as gradients but copies to their variables, such as the largest
        values of 8-bit floats, become the largest of all nodes.
        """
        results = list(by_node[0])
        coded, copied = _kinds(results, variables)
        if coded:
            reducer = self.reducer(optimizer, [variables[i] for i in coded])
            given = [[node[i] for i in coded] for node in by_node]
            fused = reducer.kernels.updates and is_fused(optimizer)
            found = reducer.reduce(given if self.nodes > 1 else given[0], as_sums=fused)
            for i, mean in zip(coded, found.means, strict=True):
                results[i] = mean
            self._reduced = (reducer.kernels, found) if fused else None
        for i in copied:
            results[i] = tf.reduce_max(tf.stack([node[i] for node in by_node]), axis=0)
        return self.largest(results, copied)

    def fused_update(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[Any],
        rate: tf.Tensor,
    ) -> list[int]:
        """Updates with the means of buckets that nobody has changed, such as by clipping them.

        One kernel decodes and updates, so that these means are never written to memory.

        Returns:
          The indices of the gradients that are still to be applied.
        """
        left = list(range(len(gradients)))
        if self._reduced is None:
            return left
        (kernels, (means, buckets)), self._reduced = self._reduced, None
        places = {id(gradient): i for i, gradient in enumerate(gradients)}
        update = update_of(optimizer, rate)
        for sums in buckets:
            own = [places.get(id(means[i])) for i in sums.variables]
            if None in own or any(means[i].dtype != tf.float32 for i in sums.variables):
                continue
            indices = [optimizer._get_variable_index(variables[i]) for i in own]
            weights = [plain(variables[i]) for i in own]
            if len({*indices}) < len(own) or not all(map(_is_float_on_cpu, weights)):
                continue
            if len({weight.device for weight in weights}) > 1:
                continue
            kernels.apply_update(sums, weights, slots_of(optimizer, indices), update)
            left = [i for i in left if i not in own]
        return left

    def largest(self, values: list[Gradient], chosen: Sequence[int]) -> list[Gradient]:
        """Replaces the chosen values by the largest of all processes."""
        if chosen:
            with tf.init_scope():
                self._shared = self._shared or Shared(self.group, f"optimizer {self._index}")
            found = self._shared.max([values[i] for i in chosen])
            for i, value in zip(chosen, found, strict=True):
                values[i] = value
        return values

    def reducer(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> Reducer:
        """Returns the reducer of some variables; the first call makes it."""
        key = tuple(str(optimizer._var_key(variable)) for variable in variables)
        if key not in self.reducers:
            with tf.init_scope():
                reducer = Reducer(variables, self.group, **self._settings)
                step = updates_of(optimizer)
                reducer.state.step.assign(step)
                folder = os.path.join(self.memory_folder, str(len(self.reducers)))
                if self.memory_folder and (why := reducer.memory.restore(folder, step)):
                    warnings.warn(f"a codec's memory starts from zero: {why}", stacklevel=2)
            self.reducers[key] = reducer
        return self.reducers[key]

    def align(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Lets random codes go on from the optimizer's step, which a backup may have restored.

        A step has more exchanges than updates where a LossScaleOptimizer skips an update. Then the
        reducer is ahead, and must not go back: parameter servers know operations by its step.
        """
        for reducer in self.reducers.values():
            step = reducer.state.step
            step.assign(tf.maximum(step, updates_of(optimizer)))

    def save_memories(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Saves what codecs keep, if they do; the files of the last time stay, too."""
        for i, reducer in enumerate(self.reducers.values()):
            folder = os.path.join(self.memory_folder, str(i))
            reducer.memory.save(folder, updates_of(optimizer), keep=1)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        sent = sum(reducer.bytes_sent for reducer in self.reducers.values())
        return sent + (self._shared.bytes_sent if self._shared else 0)


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
            super().apply(exchange.means(self, by_node, variables), variables)

    def _apply_accumulated(
        self, exchange: GradientExchange, grads: list[Gradient], variables: list[Any]
    ) -> None:
        coded, copied = _kinds(grads, variables)
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
        if has_momentum(self) and _is_float_on_cpu(variable):
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


def bits_per_parameter(exchanges: Iterable[GradientExchange]) -> float:
    """Returns the bits that this process sends for each parameter in an update."""
    reducers = [reducer for exchange in exchanges for reducer in exchange.reducers.values()]
    bits = sum(reducer.bits_per_parameter * reducer.layout.size for reducer in reducers)
    return bits / max(sum(reducer.layout.size for reducer in reducers), 1)


def updates_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns how many updates an optimizer has made."""
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def _attach(optimizer: keras.optimizers.Optimizer, state: GradientExchange) -> None:
    own = type(optimizer)
    name, module = own.__name__, own.__module__
    made = type(name, (Exchanging, own), {"__module__": module, "__doc__": own.__doc__})
    vars(optimizer)[_STATE] = state
    _CLASS.__set__(optimizer, made)


def _is_float_on_cpu(variable: Any) -> bool:
    """Returns whether a kernel of TensorFlow rounds as single operations do."""
    return variable.dtype == tf.float32 and "GPU" not in variable.device


def _kinds(gradients: Sequence[Gradient], variables: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Returns the indices of gradients that are applied, and of those that Keras copies."""
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    copied = [i for i in given if getattr(variables[i], "overwrite_with_gradient", False)]
    return [i for i in given if i not in copied], copied


def _not_once(nodes: int) -> ValueError:
    return ValueError(
        f"nodes={nodes}: a train_step must apply gradients exactly once; allowed is nodes=1 with "
        "this one"
    )


def _check_outermost(exchange: GradientExchange) -> None:
    """Raises ValueError if another optimizer uses this one, and would not see the means."""
    if exchange.is_within and exchange.group.size > 1:
        raise ValueError(
            "a LossScaleOptimizer or MultiOptimizer is around the distributed optimizer: "
            "distribute the outermost one, distribute(LossScaleOptimizer(optimizer), group)"
        )
