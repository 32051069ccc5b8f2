"""The class of a distributed optimizer of Keras: it reduces gradients before it applies them."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.keras.internals import (
    ApplyHooks,
    AsOwnClass,
    change_class,
    own_class,
    place_of,
    trained_variables,
)
from terngrad.library.keras.updates import PendingSums, has_momentum, is_float_on_cpu
from terngrad.library.reducer import Gradient, Reducer, layers_within
from terngrad.library.shared import Shared

_STATE = "_terngrad"  # attribute of a distributed optimizer
_MOVED = "_terngrad_moved"  # of one whose exchange was moved to an optimizer around it


def exchange_of(optimizer: Any) -> GradientExchange | None:
    """Returns the exchange of an optimizer's gradients; None if it is not distributed."""
    return vars(optimizer).get(_STATE) if isinstance(optimizer, Exchanging) else None


def attach(optimizer: keras.optimizers.Optimizer, exchange: GradientExchange) -> None:
    """Lets an optimizer exchange its gradients."""
    own = type(optimizer)
    name, module = own.__name__, own.__module__
    made = type(name, (Exchanging, own), {"__module__": module, "__doc__": own.__doc__})
    vars(optimizer)[_STATE] = exchange
    exchange.holder = optimizer
    change_class(optimizer, made)


def move_to_outer(optimizer: keras.optimizers.Optimizer) -> None:
    """Moves the exchange of the optimizer within a LossScaleOptimizer to the latter.

    `model.compile` puts a LossScaleOptimizer around the optimizer of a model in mixed float16. It
    skips steps whose gradients are not finite: all processes must see the same ones. Another
    `compile` with the same optimizer makes another LossScaleOptimizer, or none, which then gets the
    exchange from the former one. Without an exchange, or with one of its own, nothing happens.
    """
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    exchange: GradientExchange | None = exchange_of(inner) or vars(inner).get(_MOVED)
    if exchange is None or exchange_of(optimizer) is not None:
        return
    vars(exchange.holder).pop(_STATE)
    change_class(exchange.holder, own_class(exchange.holder))
    vars(inner)[_MOVED] = exchange
    exchange.is_within = False
    attach(optimizer, exchange)


class Exchanging(ApplyHooks, AsOwnClass):
    """The base, before the optimizer's own class, of the class of a distributed optimizer."""

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
            trainable_variables = trained_variables(self)
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
        elif (by_node := exchange.collect_nodes(grads)) is not None:
            means, first = exchange.means(self, by_node, variables)
            # Also what needs no mean, such as the count of updates and the decay of weights, comes
            # after the note that updates begin.
            with tf.control_dependencies(first):
                super().apply(means, variables)

    def _apply_accumulated(
        self, exchange: GradientExchange, grads: list[Gradient], variables: list[Any]
    ) -> None:
        coded, copied = _kinds_of(grads, variables)
        exchange.reducer(self, variables, coded)  # not within the branch of an update
        exchange.due = None
        super().apply(exchange.largest(grads, copied), variables)
        if exchange.due is None:
            name = own_class(self).__name__
            raise TypeError(
                f"{name} accumulates gradients in a way of its own, so the exchange does not know "
                "when an update is due; allowed is gradient_accumulation_steps=None with it"
            )

    def note_filtered(self, variables: Sequence[Any]) -> None:
        """See base class."""
        vars(self)[_STATE].due = variables

    def before_clipping(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Exchanges accumulated gradients: this is the first in the branch of a due update."""
        if not self.gradient_accumulation_steps:
            return gradients
        exchange: GradientExchange = vars(self)[_STATE]
        return exchange.means(self, [gradients], exchange.due)[0]

    def rate_of_updates(self, rate: Any) -> Any:
        """See base class."""
        factor = vars(self)[_STATE].rate_factor
        return rate if factor is None else rate * keras.ops.cast(factor, rate.dtype)

    def before_updates(
        self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Updates with means that are not decoded; returns the others."""
        done = vars(self)[_STATE].pending_sums.apply(self, rate)
        left = [i for i, variable in enumerate(variables) if plain(variable).ref() not in done]
        return [gradients[i] for i in left], [variables[i] for i in left]

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates a variable as the optimizer's own class does, bit for bit.

        Momentum takes one kernel. Keras' four operations take twice the time, each with a pass of
        its own over memory.
        """
        if has_momentum(self) and is_float_on_cpu(variable):
            velocity = self.momentums[place_of(self, variable)]
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


class GradientExchange:
    """The exchange of a distributed optimizer's gradients, and its state.

    Attributes:
      group: the processes.
      holder: the optimizer whose `apply` exchanges.
      nodes: number of nodes of this process.
      is_within: whether another optimizer of Keras uses this one.
      is_building: whether a train_step is being traced only to create its variables.
      build: builds the optimizer for the variables of the traced step.
      due: variables of the accumulated gradients that are about to be applied.
      pending_sums: the means of the update under way that are to be applied without decoding them.
      others: returns a node's tensors whose means belong to its step, as the gradients' do; None
        where there are none.
      means_of_others: these means, in the graph of the step that was traced last.
      rate_factor: by which learning rates are multiplied in updates; None = 1.
      reducers: by the variables that they serve.
      memory_folder: where this process saves what codecs keep between steps; "" = nowhere.
      has_chiefs_state: whether all processes have got the chief's optimizer state.
    """

    def __init__(self, group: Group, settings: dict[str, Any]) -> None:
        """Makes reducers with these settings when the variables are known."""
        self.group = group
        self.holder: keras.optimizers.Optimizer | None = None
        self.nodes: int = settings["nodes"]
        self.is_within = False
        self.is_building = False
        self.build: Callable[[], None] | None = None
        self.due: Sequence[Any] | None = None
        self.pending_sums = PendingSums()
        self.others: Callable[[], list[tf.Tensor]] | None = None
        self.means_of_others: Sequence[tf.Tensor] = ()
        self.rate_factor: tf.Variable | None = None
        self.reducers: dict[tuple, Reducer] = {}
        self.memory_folder = ""
        self.has_chiefs_state = False
        self._settings = settings
        self._node: int | None = None  # whose train_step is being called
        self._given: list[list[Gradient]] = []  # by the nodes of this step so far
        self._given_others: list[list[tf.Tensor]] = []
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

    def collect_nodes(self, gradients: list[Gradient]) -> list[list[Gradient]] | None:
        """Adds a node's gradients; returns those of all nodes after the last one, else None."""
        others = [self.others()] if self.others else []
        if self.nodes == 1:
            self._given_others = others
            return [gradients]
        if self._node is None:
            raise ValueError(
                f"nodes={self.nodes} needs fit with callbacks=[DistributedCallback(group)], which "
                "splits the batch; a loop of your own needs terngrad.Reducer(..., "
                f"nodes={self.nodes})"
            )
        if len(self._given) != self._node:
            raise _not_once(self.nodes)
        self._given.append(gradients)
        self._given_others = [*(self._given_others if self._node else []), *others]
        return self._given if len(self._given) == self.nodes else None

    def means(
        self, optimizer: keras.optimizers.Optimizer, by_node: Sequence[list[Gradient]], variables
    ) -> tuple[list[Gradient], list[tf.Tensor]]:
        """Returns mean gradients, None where a gradient is None, and tensors that are there first.

        Values that Keras passes as gradients but copies to their variables, such as the largest
        values of 8-bit floats, become the largest of all nodes.
        """
        results, first = list(by_node[0]), []
        coded, copied = _kinds_of(results, variables)
        self.pending_sums.clear()
        if coded:
            reducer = self.reducer(optimizer, variables, coded)
            given = [[node[i] for i in coded] for node in by_node]
            weights = [plain(variables[i]) for i in coded]
            as_sums = self.pending_sums.can_apply(optimizer, weights, reducer.kernels)
            found = reducer.reduce(
                given if self.nodes > 1 else given[0], as_sums=as_sums, others=self._given_others
            )
            self.means_of_others = found.others
            for i, mean in zip(coded, found.means, strict=True):
                results[i] = mean
            self.pending_sums.add(found, weights)
            # Not a mean, which would then be decoded for this alone.
            first = [found.sums[0].words] if found.sums else found.means[:1]
        for i in copied:
            results[i] = tf.reduce_max(tf.stack([node[i] for node in by_node]), axis=0)
        return self.largest(results, copied), first

    def largest(self, values: list[Gradient], chosen: Sequence[int]) -> list[Gradient]:
        """Replaces the chosen values by the largest of all processes."""
        if chosen and self.others:
            raise ValueError(
                "8-bit floats cannot be trained where workers may come and go; allowed are other "
                "float types"
            )
        if chosen:
            with tf.init_scope():
                self._shared = self._shared or self.group.shared(f"optimizer {self._index}")
            found = self._shared.max([values[i] for i in chosen])
            for i, value in zip(chosen, found, strict=True):
                values[i] = value
        return values

    def reducer(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[Any],
        chosen: Sequence[int],
    ) -> Reducer:
        """Returns the reducer of the chosen variables of an update; the first call makes it."""
        reduced = [variables[i] for i in chosen]
        key = tuple(plain(variable).ref() for variable in reduced)
        if key not in self.reducers:
            every = trained_variables(optimizer) or variables
            layers = layers_within(self._settings["float_layers"], reduced, every)
            with tf.init_scope():
                settings = {**self._settings, "float_layers": layers}
                reducer = Reducer(reduced, self.group, **settings)
                if not self.group.is_elastic:  # `Group.run_steps` copies the whole state
                    self._share_state(optimizer, variables)
                reducer.state.step.assign(updates_of(optimizer))
                self._restore_memory(optimizer, len(self.reducers), reducer)
            self.reducers[key] = reducer
        return self.reducers[key]

    def _share_state(self, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
        """Gives all processes the chief's optimizer state, unless they have got it before.

        An optimizer that is not built yet is built before, with the chief's weights, which all have
        now: a MultiOptimizer has none of its optimizers until then.
        """
        if self.has_chiefs_state:
            return
        if not optimizer.built:
            optimizer.build(list(variables))
        self.group.broadcast(list({id(plain(v)): v for v in optimizer.variables}.values()))
        self.has_chiefs_state = True

    def restore_memories(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Loads the codecs' memories that belong to a backup which was restored just now.

        Reducers that an earlier `fit` has made have those of that one.
        """
        for i, reducer in enumerate(self.reducers.values()):
            self._restore_memory(optimizer, i, reducer)

    def _restore_memory(
        self, optimizer: keras.optimizers.Optimizer, index: int, reducer: Reducer
    ) -> None:
        folder = os.path.join(self.memory_folder, str(index))
        if self.memory_folder and (why := reducer.memory.restore(folder, updates_of(optimizer))):
            kept = reducer.memory.variables
            what = "a codec's memory starts from zero" if kept else "an earlier memory is dropped"
            warnings.warn(f"{what}: {why}", stacklevel=2)

    def align(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Sets the step of random codes to the optimizer's, which a backup may have restored.

        There are fewer updates than exchanges where a LossScaleOptimizer skips some. The reducer is
        ahead then, and must not go back: parameter servers know operations by its step.
        """
        for reducer in self.reducers.values():
            step = reducer.state.step
            step.assign(tf.maximum(step, updates_of(optimizer)))

    def save_memories(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Saves the codecs' memories, if they have any, and keeps those of the previous save."""
        for i, reducer in enumerate(self.reducers.values()):
            folder = os.path.join(self.memory_folder, str(i))
            reducer.memory.save(folder, updates_of(optimizer), keep=1)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        sent = sum(reducer.bytes_sent for reducer in self.reducers.values())
        return sent + (self._shared.bytes_sent if self._shared else 0)


def with_inner_optimizers(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Returns an optimizer and those that it is made of, such as that of a LossScaleOptimizer."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [
        optimizer,
        *(part for each in inner if each is not None for part in with_inner_optimizers(each)),
    ]


def bits_per_parameter(reducers: Sequence[Reducer]) -> float:
    """Returns the bits that this process sends for each parameter when each reducer is called."""
    bits = sum(reducer.bits_per_parameter * reducer.layout.size for reducer in reducers)
    return bits / max(sum(reducer.layout.size for reducer in reducers), 1)


def optimizers_of(model: keras.Model) -> list[tuple[str, keras.optimizers.Optimizer]]:
    """Returns a model's optimizers and the attribute that holds each, perhaps in a list or dict."""
    found: dict[int, tuple[str, keras.optimizers.Optimizer]] = {}
    for name, value in list(vars(model).items()):
        if name.startswith("_self_"):  # TensorFlow's own notes of the other attributes
            continue
        parts = value.values() if isinstance(value, dict) else value
        for part in parts if isinstance(value, (dict, list, tuple)) else [value]:
            if isinstance(part, keras.optimizers.Optimizer):
                found.setdefault(id(part), (name, part))
    return list(found.values())


def undistributed(model: keras.Model) -> list[str]:
    """Returns the attributes with optimizers that have made updates on this process alone."""
    found = optimizers_of(model)
    inner = {id(part) for _, optimizer in found for part in with_inner_optimizers(optimizer)[1:]}
    return [
        name
        for name, optimizer in found
        if exchange_of(optimizer) is None and id(optimizer) not in inner and updates_of(optimizer)
    ]


def updates_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns how many updates an optimizer has made."""
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def _kinds_of(
    gradients: Sequence[Gradient], variables: Sequence[Any]
) -> tuple[list[int], list[int]]:
    """Returns the indices of gradients that are applied, and of those that Keras copies."""
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    copied = [i for i in given if getattr(variables[i], "overwrite_with_gradient", False)]
    return [i for i in given if i not in copied], copied


def _check_outermost(exchange: GradientExchange) -> None:
    """Raises ValueError if another optimizer uses this one, and would not see the means."""
    if exchange.is_within and exchange.group.size > 1:
        raise ValueError(
            "a LossScaleOptimizer or MultiOptimizer is around the distributed optimizer: "
            "distribute the outermost one, distribute(LossScaleOptimizer(optimizer), group)"
        )


def _not_once(nodes: int) -> ValueError:
    return ValueError(
        f"nodes={nodes}: a train_step must apply gradients exactly once; allowed is nodes=1 with "
        "this one"
    )
