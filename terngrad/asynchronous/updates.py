"""The parameters that a ps holds, and their updates by gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.messages import sizes_text
from terngrad.asynchronous.plan import Plan, state_groups
from terngrad.asynchronous.row import Shard
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.training.averages import MovingAverages
from terngrad.training.optimizers import make_optimizer
from terngrad.training.schedules import Schedule

_LARGEST = 1e10  # most that a value of a gradient may be, so that squares and sums stay finite
_LARGE = 1e15  # a state or learning rate beyond which an update might overflow float32
_LOOK_UPDATES = 16  # between looks at how large the state is


class GradientError(ValueError):
    """A gradient cannot be applied; the text says why."""


class Gradient(NamedTuple):
    """A shard's part of a worker's gradient.

    Attributes:
      units: float32 [p], the value of a code of 1 in each part of the variables.
      words: uint32 [coded / 32, planes], sums of codes.
      floats: float32 [floats].
      statistics: float32, new values of the moving statistics.
    """

    units: np.ndarray
    words: np.ndarray
    floats: np.ndarray
    statistics: np.ndarray


class Updates:
    """A shard's parameters, slots and moving averages. Not for several threads at once.

    Attributes:
      version: number of updates that were applied.
    """

    def __init__(
        self, plan: Plan, shard: Shard, kernels: GradientKernels, schedule: Schedule
    ) -> None:
        """Starts with zeros; `schedule` returns the learning rate by version."""
        self.version = 0
        self._plan, self._shard, self._kernels = plan, shard, kernels
        self._schedule = schedule
        self._parameters = tf.Variable(tf.zeros([shard.size]), trainable=False)
        self._statistics = np.zeros(shard.statistics, np.float32)
        self._optimizer = make_optimizer(plan.optimizer, [self._parameters], plan.momentum)
        decay = plan.averages_decay
        self._averages = MovingAverages([self._parameters], decay) if decay else None
        # Not a constant: Grappler would turn the division by it into a product.
        self._nodes = tf.Variable(plan.nodes, dtype=tf.int32, trainable=False)
        self._apply = tf.function(self._update, autograph=False)
        halves = lambda: tf.saturate_cast(self._parameters, tf.float16)  # its largest is 65504
        self._halves = tf.function(halves, autograph=False)
        groups = {"variables": self._parameters}
        groups |= {"averages": self._averages.shadows[0]} if self._averages else {}
        groups |= {f"slots/{slot}": v[0] for slot, v in self._optimizer.slots.items()}
        self._state = [groups[name] for name in state_groups(plan)]
        self._largest = tf.function(self._largest_value, autograph=False)
        self._may_overflow = True  # as long as nobody has looked

    def check(self, content: bytes | bytearray) -> Gradient:
        """Reads a pushed gradient.

        Raises:
          GradientError: the gradient has the wrong size or a value that is not allowed.
        """
        shard = self._shard
        if len(content) not in shard.pushed_bytes:
            sizes = sizes_text([shard.pushed_bytes])
            raise GradientError(f"the gradient has {len(content)} bytes; allowed are {sizes}")
        units = np.frombuffer(content, "<f4", shard.scales)
        floats = np.frombuffer(content, f"<f{shard.wire_bytes}", shard.floats, units.nbytes)
        start = units.nbytes + floats.nbytes
        statistics = np.frombuffer(content, "<f4", shard.statistics, start)
        if not np.all((units >= 0) & np.isfinite(units)):
            raise GradientError(
                "a scale is negative or not finite; allowed are finite values from 0"
            )
        if not (np.all(np.isfinite(floats)) and np.all(np.isfinite(statistics))):
            raise GradientError("a float gradient or a statistic is not finite")
        coded = float(units.max(initial=0)) * self._plan.max_code
        largest = max(coded, float(np.abs(floats).max(initial=0)))
        if largest > _LARGEST:
            text = f"the gradient has a value of up to {largest:.3g}; allowed is up to {_LARGEST:g}"
            raise GradientError(text)
        packed = memoryview(content)[start + statistics.nbytes :]
        try:
            words = self._kernels.packing.read(packed, shard.largest, shard.coded)
        except ValueError as error:
            raise GradientError(f"the codes of the gradient: {error}") from None
        return Gradient(units, words, floats.astype(np.float32), statistics)

    def apply(self, gradient: Gradient) -> None:
        """Applies a checked gradient.

        Raises:
          GradientError: after it a parameter or slot would not be finite; nothing has changed.
        """
        step = tf.constant(np.int64(self.version))  # TensorFlow keeps each int of Python for ever
        if self._may_overflow or self.version % _LOOK_UPDATES == 0:
            self._may_overflow = not self._largest(step) <= _LARGE
        before = [tf.identity(v) for v in self._state] if self._may_overflow else []
        self._apply(gradient.units, gradient.words, gradient.floats, step)
        if before and not np.isfinite(self._largest(step)):
            for variable, value in zip(self._state, before, strict=True):
                variable.assign(value)
            raise GradientError("after its gradient a parameter or slot would not be finite")
        self._statistics = gradient.statistics
        self.version += 1

    def pulled(self) -> bytes:
        """Returns the parameters as a worker pulls them, then the statistics, float32."""
        halves = self._plan.pull_bits == 16
        values = (self._halves() if halves else self._parameters).numpy()
        return values.tobytes() + self._statistics.tobytes()

    def state(self) -> bytes:
        """Returns the whole state, see `state_groups`."""
        return b"".join([*(v.numpy().tobytes() for v in self._state), self._statistics.tobytes()])

    def load(self, content: bytes | bytearray, version: int) -> None:
        """Loads a state of the right size."""
        values = np.frombuffer(content, "<f4")
        size = self._shard.size
        for i, variable in enumerate(self._state):
            variable.assign(values[i * size : (i + 1) * size])
        self._statistics = values[len(self._state) * size :].copy()
        self.version = version

    def _largest_value(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the largest absolute value of state and learning rate; inf if one is NaN."""
        values = [*(v.read_value() for v in self._state), self._schedule(step)]
        is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in values])
        largest = tf.reduce_max([tf.reduce_max(tf.abs(v)) for v in values])
        return tf.where(is_finite, largest, np.inf)

    def _update(self, units, words, floats, step: tf.Tensor) -> None:
        parts = []
        if self._shard.coded:
            ranges, nodes = self._shard.coded_ranges, self._nodes.read_value()
            lengths, own = [(each.size,) for each in ranges], [each.parts for each in ranges]
            parts += self._kernels.decode(words, units, nodes, lengths, own)
        gradient = tf.concat([*parts, floats], 0)
        self._optimizer.apply([gradient], self._schedule(step), step)
        if self._averages:
            self._averages.update(step)
