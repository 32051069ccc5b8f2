"""What a distributed optimizer of Keras exchanges, and with which reducers."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from terngrad.library.group import Group, plain
from terngrad.library.keras_updates import is_fused, slots_of, update_of
from terngrad.library.reducer import Gradient, Reduced, Reducer
from terngrad.library.shared import Shared
from terngrad.ops.gradient_kernels import GradientKernels


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
        self._reduced: tuple[GradientKernels, Reduced] | None = None  # of the update under way
        self.first: list[tf.Tensor] = []  # what comes first of its results
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
        coded, copied = kinds_of(results, variables)
        self.first = []
        if coded:
            reducer = self.reducer(optimizer, [variables[i] for i in coded])
            given = [[node[i] for i in coded] for node in by_node]
            fused = reducer.kernels.updates and is_fused(optimizer)
            found = reducer.reduce(given if self.nodes > 1 else given[0], as_sums=fused)
            for i, mean in zip(coded, found.means, strict=True):
                results[i] = mean
            self._reduced = (reducer.kernels, found) if fused else None
            # Not a mean that nobody may need to be decoded.
            self.first = [found.sums[0].words] if found.sums else found.means[:1]
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
            if len({*indices}) < len(own) or not all(map(is_float_on_cpu, weights)):
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
                self._shared = self._shared or self.group.shared(f"optimizer {self._index}")
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

        There are fewer updates than exchanges where a LossScaleOptimizer skips some. The reducer is
        ahead then, and must not go back: parameter servers know operations by its step.
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


def parts_of(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Returns an optimizer and those that it is made of, such as that of a LossScaleOptimizer."""
    inner = [getattr(optimizer, "inner_optimizer", None)]
    inner += getattr(optimizer, "_inner_optimizers", [])
    return [optimizer, *(part for each in inner if each is not None for part in parts_of(each))]


def bits_per_parameter(exchanges: Iterable[GradientExchange]) -> float:
    """Returns the bits that this process sends for each parameter in an update."""
    reducers = [reducer for exchange in exchanges for reducer in exchange.reducers.values()]
    bits = sum(reducer.bits_per_parameter * reducer.layout.size for reducer in reducers)
    return bits / max(sum(reducer.layout.size for reducer in reducers), 1)


def updates_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns how many updates an optimizer has made."""
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def kinds_of(
    gradients: Sequence[Gradient], variables: Sequence[Any]
) -> tuple[list[int], list[int]]:
    """Returns the indices of gradients that are applied, and of those that Keras copies."""
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    copied = [i for i in given if getattr(variables[i], "overwrite_with_gradient", False)]
    return [i for i in given if i not in copied], copied


def is_float_on_cpu(variable: Any) -> bool:
    """Returns whether a kernel of TensorFlow rounds as single operations do."""
    return variable.dtype == tf.float32 and "GPU" not in variable.device


def _not_once(nodes: int) -> ValueError:
    return ValueError(
        f"nodes={nodes}: a train_step must apply gradients exactly once; allowed is nodes=1 with "
        "this one"
    )
