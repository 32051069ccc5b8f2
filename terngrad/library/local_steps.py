"""Local steps in a loop of one's own: `terngrad.LocalSteps`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from terngrad.library.group import Group, plain
from terngrad.library.reducer import Reducer, ReducerState
from terngrad.training.optimizers import Momentum


class LocalStepsState(tf.Module):
    """What a checkpoint of this process must hold, beside its weights and its optimizer.

    Attributes:
      count: int64 scalar, steps since the last exchange.
      shared: the weights after the last exchange, float32, in the order of the variables.
      velocities: of the outer optimizer, in the same order.
      reducer: of the exchanges, see `ReducerState`.
    """

    def __init__(
        self,
        shared: Sequence[tf.Variable],
        velocities: Sequence[tf.Variable],
        reducer: ReducerState,
    ) -> None:
        """Holds these variables."""
        super().__init__()
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.shared, self.velocities = list(shared), list(velocities)
        self.reducer = reducer


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

    Attributes:
      state: variables for tf.train.Checkpoint, see `LocalStepsState`.
      reducer: exchanges the deltas; counts the bytes.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        group: Group,
        *,
        steps: int,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
        feedback: float = 1.0,
        averaged: Sequence[Any] = (),
        **settings: Any,
    ) -> None:
        """Compares the settings with the other processes, and copies the chief's variables to all.

        Args:
          variables: tf.Variables or Keras variables of a float type, of fixed shapes.
          group: the processes, from `terngrad.join`; not an elastic one.
          steps: a process' own steps between two exchanges.
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
        _check(steps, given, settings)
        if group.is_elastic:
            raise ValueError(
                "LocalSteps: the group is elastic or has num_replicas_to_aggregate; allowed is one "
                "of fixed processes"
            )
        configuration = {"steps": steps, **given, "averaged variables": len(averaged)}
        group.agree(
            {f"{k} of LocalSteps": str(v) for k, v in configuration.items()}, "a new LocalSteps"
        )
        self.reducer = Reducer(variables, group, memory_decay=feedback, **settings)
        group.broadcast(averaged)
        self._group, self._steps, self._rate = group, steps, float(learning_rate)
        self._variables = [plain(variable) for variable in variables]
        self._averaged = [plain(variable) for variable in averaged]
        shared = [
            tf.Variable(tf.cast(v, tf.float32), trainable=False, name=f"shared_{i}")
            for i, v in enumerate(self._variables)
        ]
        self._outer = Momentum(shared, float(momentum), nesterov=True)
        self.state = LocalStepsState(shared, self._outer.slots["momentum"], self.reducer.state)

    def step(self) -> bool:
        """Counts a step of this process, and exchanges after each `steps`; call it after the step.

        Returns:
          Whether it exchanged, so that all processes have the same weights.

        Raises:
          ValueError: it is called within tf.function.
          MembershipError: see `exchange`.
        """
        if not tf.executing_eagerly():
            raise ValueError("LocalSteps.step: call it outside tf.function, after each step")
        self.state.count.assign_add(1)
        if int(self.state.count) < self._steps:
            return False
        self.exchange()
        return True

    def exchange(self) -> None:
        """Exchanges now, such as after the last step; all processes call it at the same step.

        Raises:
          MembershipError: a process left or does something else, or the group is closed.
        """
        pairs = zip(self.state.shared, self._variables, strict=True)
        deltas = [shared - tf.cast(own, tf.float32) for shared, own in pairs]
        means = self.reducer(deltas)
        averaged = self._group.all_reduce(list(self._averaged)) if self._averaged else []
        self._outer.apply(means, tf.constant(self._rate), self.state.reducer.step)
        for own, shared in zip(self._variables, self.state.shared, strict=True):
            own.assign(tf.cast(shared, own.dtype))
        for own, mean in zip(self._averaged, averaged, strict=True):
            own.assign(mean)
        self.state.count.assign(0)


def _check(steps: int, given: Mapping[str, float], settings: Mapping[str, Any]) -> None:
    if not isinstance(steps, numbers.Integral):
        raise TypeError(f"steps is {steps!r}; allowed are integers")
    if steps < 1:
        raise ValueError(f"steps is {steps}; allowed are 1 and more")
    for name, value in given.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(f"{name} is {value!r}; allowed are numbers")
        most = math.inf if name == "learning_rate" else 1.0
        if not (0 <= value <= most and math.isfinite(value)):
            allowed = "finite numbers from 0 on" if most == math.inf else "numbers from 0 to 1"
            raise ValueError(f"{name} is {value}; allowed are {allowed}")
    for name in ("nodes", "memory_decay"):
        if name in settings:
            raise TypeError(f"{name} is no argument of LocalSteps")
