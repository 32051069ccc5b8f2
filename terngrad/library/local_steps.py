"""Local steps in a custom loop: `terngrad.LocalSteps`."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from terngrad.library.arrays import plain
from terngrad.library.group import Group
from terngrad.library.reducer import Reducer, ReducerState, layers_within
from terngrad.library.reducer_settings import check_group, check_settings, with_suited
from terngrad.training.local_step import make_fragments
from terngrad.training.optimizers import Momentum


class LocalStepsState(tf.Module):
    """What a checkpoint of this process must hold, beside its weights and its optimizer.

    Attributes:
      count: int64 scalar, steps since the last exchange.
      shared: the weights after the last exchange, float32, in the order of the variables.
      velocities: of the outer optimizer, in the same order.
      begun: with `overlap` this process' weights at the start of the current exchange, float32.
      reducer: of the exchanges of the first fragment, see `ReducerState`.
      reducers: of each fragment; without fragments that of `reducer` alone.
    """

    begun: Sequence[tf.Variable] = ()

    def __init__(
        self,
        shared: Sequence[tf.Variable],
        velocities: Sequence[tf.Variable],
        reducers: Sequence[ReducerState],
        begun: Sequence[tf.Variable] = (),
    ) -> None:
        """Holds these variables."""
        super().__init__()
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.shared, self.velocities = list(shared), list(velocities)
        if begun:  # else a checkpoint would have an empty list
            self.begun = list(begun)
        self.reducer, self.reducers = reducers[0], list(reducers)


class LocalSteps:
    """Exchanges what several steps of each process have changed: `local.step()`.

        group = terngrad.join()
        local = terngrad.LocalSteps(model.trainable_variables, group, steps=16)
        ...
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        local.step()  # after each step of the optimizer

    Each process calls it equally often, outside tf.function. Each call of number `steps` exchanges
    delta = weights after the last exchange - weights now. The outer optimizer, Nesterov's momentum,
    applies the mean delta to the former, and all processes go on with the result, bit for bit the
    same. The optimizer of the loop and its slots stay each process' own.

    With `fragments` the variables are shared out (`make_fragments`), and each `steps` / `fragments`
    calls exchange the next fragment, so that the network is loaded evenly. Between its
    exchanges each process has its own weights of a fragment.

    With `overlap` an exchange runs in another thread during the next `steps` / `fragments` calls.
    Then its result is applied, and what this process has changed meanwhile is kept: the weights are
    shared weights - what is not exchanged yet. So only `state.shared` is equal on all.

    Attributes:
      state: variables for tf.train.Checkpoint, see `LocalStepsState`.
      reducers: exchange the deltas of each fragment.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        group: Group,
        *,
        steps: int,
        fragments: int = 1,
        overlap: bool = False,
        learning_rate: float = 0.7,
        momentum: float = 0.8,
        feedback: float = 1.0,
        averaged: Sequence[Any] = (),
        **settings: Any,
    ) -> None:
        """Compares the settings with the other processes, and copies the chief's variables to all.

        Args:
          variables: tf.Variables or Keras variables of a float type, of fixed shapes.
          group: the processes, from `terngrad.join`; not an elastic one.
          steps: a process' own steps between two exchanges of a variable.
          fragments: how many parts of the variables are exchanged in turn; divides `steps`.
          overlap: whether an exchange runs during the next steps; not with MPI.
          learning_rate: of the outer optimizer.
          momentum: of the outer optimizer, 0 = none.
          feedback: share of its memory that a codec with feedback adds to the next delta.
          averaged: float variables that each exchange sets to their mean over the processes, such
            as the moving statistics of batch normalization.
          settings: further arguments of `Reducer`, such as `gradients`; all but `nodes` and
            `memory_decay`.

        Raises:
          TypeError: an argument has another type.
          ValueError: an argument is wrong.
          MembershipError: names a setting that differs between two processes.
        """
        given = {"learning_rate": learning_rate, "momentum": momentum, "feedback": feedback}
        _check(group, steps, fragments, overlap, given, settings)
        self._averaged = _averageable(averaged)
        configuration = {"steps": steps, "fragments": fragments, "overlap": bool(overlap), **given}
        configuration["averaged variables"] = len(self._averaged)
        group.agree(
            {f"{k} of LocalSteps": str(v) for k, v in configuration.items()}, "a new LocalSteps"
        )
        self._variables = [plain(variable) for variable in variables]
        self._fragments = [list(range(len(self._variables)))]
        if fragments > 1:
            sizes = [v.shape.num_elements() or 0 for v in self._variables]
            self._fragments = make_fragments(sizes, fragments)
        self.reducers = [
            Reducer(
                [variables[i] for i in fragment],
                group,
                memory_decay=feedback,
                **_of_fragment(settings, index, [variables[i] for i in fragment], variables),
            )
            for index, fragment in enumerate(self._fragments)
        ]
        group.broadcast(self._averaged)
        self._group, self._rate = group, float(learning_rate)
        self._steps = steps // fragments
        shared = [
            tf.Variable(tf.cast(v, tf.float32), trainable=False, name=f"shared_{i}")
            for i, v in enumerate(self._variables)
        ]
        begun = [tf.Variable(v, trainable=False) for v in shared] if overlap else []
        self._overlaps = bool(overlap)
        self._end: Callable[[], list[tf.Tensor]] | None = None  # of the exchange under way
        self._outer = Momentum(shared, float(momentum), nesterov=True)
        states = [reducer.state for reducer in self.reducers]
        self.state = LocalStepsState(shared, self._outer.slots["momentum"], states, begun)

    @property
    def bytes_sent(self) -> int:
        """Bytes of deltas that this process has sent so far, without headers."""
        return sum(reducer.bytes_sent for reducer in self.reducers)

    def step(self) -> bool:
        """Counts a step of this process, and exchanges if it is time; call it after the step.

        Returns:
          Whether it exchanged, so that all processes have the same weights, or with fragments those
          of one fragment; with `overlap` whether it ended an exchange and began the next.

        Raises:
          ValueError: it is called within tf.function.
          MembershipError: see `exchange`.
        """
        if not tf.executing_eagerly():
            raise ValueError("LocalSteps.step: call it outside tf.function, after each step")
        if self._overlaps and self._end is None:
            self._begin()
        self.state.count.assign_add(1)
        if int(self.state.count) < self._steps:
            return False
        if self._overlaps:
            self._finish()
        else:
            self._exchange_fragment(self._next)
        self._average()
        if self._overlaps:
            for i in self._fragments[self._next]:
                self.state.begun[i].assign(tf.cast(self._variables[i], tf.float32))
            self._begin()
        return True

    def exchange(self) -> None:
        """Exchanges all now, such as after the last step; all processes call it at the same step.

        Raises:
          MembershipError: a process left or does something else, or the group is closed.
        """
        if self._overlaps:
            if self._end is None:  # its process was started again
                self._begin()
            self._finish()
        first = self._next
        for index in range(first, first + len(self.reducers)):
            self._exchange_fragment(index % len(self.reducers))
        for begun, own in zip(self.state.begun, self._variables, strict=self._overlaps):
            begun.assign(tf.cast(own, tf.float32))
        self._average()

    @property
    def _next(self) -> int:
        """The fragment of the next exchange, or of that under way."""
        return sum(int(state.step) for state in self.state.reducers) % len(self.reducers)

    def _average(self) -> None:
        """Ends a round: averages what an exchange averages."""
        averaged = self._group.all_reduce(list(self._averaged)) if self._averaged else []
        for own, mean in zip(self._averaged, averaged, strict=True):
            own.assign(mean)
        self.state.count.assign(0)

    def _begin(self) -> None:
        """Begins the exchange of what this process had changed when its weights were `begun`."""
        state, fragment = self.state, self._fragments[self._next]
        deltas = [self._copy_of_shared(i) - state.begun[i] for i in fragment]
        self._end = self.reducers[self._next].start(deltas)

    def _finish(self) -> None:
        """Ends the exchange under way; what this process has changed meanwhile is kept."""
        index, end, self._end = self._next, self._end, None
        self._apply(index, end())
        shared, begun = self.state.shared, self.state.begun
        for i in self._fragments[index]:
            own = self._variables[i]
            meanwhile = tf.cast(own, tf.float32) - begun[i]
            own.assign(tf.cast(shared[i] + meanwhile, own.dtype))

    def _exchange_fragment(self, index: int) -> None:
        fragment, shared, own = self._fragments[index], self.state.shared, self._variables
        deltas = [self._copy_of_shared(i) - tf.cast(own[i], tf.float32) for i in fragment]
        self._apply(index, self.reducers[index](deltas))
        for i in fragment:
            own[i].assign(tf.cast(shared[i], own[i].dtype))

    def _copy_of_shared(self, i: int) -> tf.Tensor:
        """Returns shared weights in float32, rounded as the process' copy: rounding is no delta."""
        return tf.cast(tf.cast(self.state.shared[i], self._variables[i].dtype), tf.float32)

    def _apply(self, index: int, means: Sequence[tf.Tensor]) -> None:
        """Makes the outer step of a fragment."""
        means = dict(zip(self._fragments[index], means, strict=True))
        step = self.state.reducers[index].step
        every = range(len(self._variables))
        self._outer.apply([means.get(i) for i in every], tf.constant(self._rate), step)


def _of_fragment(
    settings: Mapping[str, Any], index: int, part: Sequence[Any], variables: Sequence[Any]
) -> dict[str, Any]:
    """Returns the settings of a fragment's reducer: its own draws, and the layers that it has."""
    found = dict(settings)
    if index:
        found["seed"] = (found.get("seed", 1) + index) % (1 << 64)
    if part and "float_layers" in found:
        found["float_layers"] = layers_within(found["float_layers"], part, variables)
    return found


def check_arguments(group: Group, **arguments: Any) -> None:
    """Checks arguments of `LocalSteps` before there are variables; raises as it does."""
    bound = inspect.signature(LocalSteps).bind((), group, **arguments)
    bound.apply_defaults()
    given = bound.arguments
    _check(
        group,
        given["steps"],
        given["fragments"],
        given["overlap"],
        {name: given[name] for name in ("learning_rate", "momentum", "feedback")},
        given["settings"],
    )


def _check(
    group: Group,
    steps: int,
    fragments: int,
    overlap: bool,
    given: Mapping[str, float],
    settings: Mapping[str, Any],
) -> None:
    check_group("LocalSteps", group)
    for name, value in {"steps": steps, "fragments": fragments}.items():
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is {value!r}; allowed are integers")
        if value < 1:
            raise ValueError(f"{name} is {value}; allowed are 1 and more")
    if steps % fragments:
        raise ValueError(f"fragments is {fragments}; allowed are divisors of steps, {steps}")
    if not isinstance(overlap, (bool, np.bool_)):
        raise TypeError(f"overlap is {overlap!r}; allowed are True and False")
    for name, value in given.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(f"{name} is {value!r}; allowed are numbers")
        limit = math.inf if name == "learning_rate" else 1.0
        if not (0 <= value <= limit and math.isfinite(value)):
            allowed = "finite numbers from 0 on" if limit == math.inf else "numbers from 0 to 1"
            raise ValueError(f"{name} is {value}; allowed are {allowed}")
    _check_settings(settings)
    if group.is_elastic:
        raise ValueError(
            "LocalSteps: the group is elastic or has num_replicas_to_aggregate; allowed is one "
            "of fixed processes"
        )
    if overlap and group.connection is not None and group.connection.matches_by_order:
        why = "which matches operations by their order"
        raise ValueError(f"overlap is True; allowed is False with MPI, {why}")


def _averageable(variables: Sequence[Any]) -> list[tf.Variable]:
    """Returns TensorFlow's variables; TypeError or ValueError names one that has no mean."""
    found = [plain(variable) for variable in variables]
    for variable in found:
        if not variable.dtype.is_floating:
            kind = f"{variable.name} is {variable.dtype.name}"
            raise ValueError(f"LocalSteps: averaged: {kind}; allowed are float variables")
    return found


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Checks the arguments of `Reducer`."""
    parameters = inspect.signature(Reducer).parameters.values()
    allowed = {each.name: each.default for each in parameters if each.default is not each.empty}
    for name in ("nodes", "memory_decay"):
        del allowed[name]
    for name in settings:
        if name not in allowed:
            raise TypeError(f"{name} is no argument of LocalSteps")
    check_settings(**with_suited(**allowed | settings), nodes=1)
