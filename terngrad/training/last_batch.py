"""The batch of the last step, which is needed again if that step is abandoned and made anew."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

_NONE = -1


class LastBatch:
    """Takes batches from an iterator, and gives that of an abandoned step a second time.

    Without it a new iterator would have to find the batch, and would first fill its shuffle pool
    again, while all other workers wait.
    """

    def __init__(self, step: tf.Variable) -> None:
        """Starts without a batch; `step` is the training's step, int64 scalar."""
        self._step = step
        self._parts: list[tf.Variable] = []
        with tf.device("/CPU:0"):
            self._belongs_to = tf.Variable(_NONE, dtype=tf.int64, trainable=False)

    def take(self, batches: Iterator) -> tuple[tf.Tensor, ...]:
        """Returns the batch of the current step; call it in a compiled function.

        Where a step may fail it must depend on the batch: otherwise the failure could cancel this.

        Args:
          batches: an iterator of tf.data with a batch of static shapes for each step.
        """
        if not self._parts:
            with tf.init_scope(), tf.device("/CPU:0"):
                zeros = [tf.zeros(spec.shape, spec.dtype) for spec in batches.element_spec]
                self._parts = [tf.Variable(each, trainable=False) for each in zeros]
        with tf.device("/CPU:0"):
            return tf.cond(
                self._belongs_to.read_value() == self._step.read_value(),
                lambda: tuple(part.read_value() for part in self._parts),
                lambda: self._take_next(batches),
            )

    def holds(self, step: int) -> bool:
        """Whether it would give the batch of a step a second time."""
        return int(self._belongs_to) == step

    def forget(self) -> None:
        """Drops the batch; call it before batches are taken from another iterator."""
        self._belongs_to.assign(_NONE)

    def _take_next(self, batches: Iterator) -> tuple[tf.Tensor, ...]:
        batch = next(batches)
        # Both share the memory of the batch: nothing is copied.
        kept = [part.assign(value) for part, value in zip(self._parts, batch, strict=True)]
        with tf.control_dependencies(kept):  # not where the input fails
            is_kept = self._belongs_to.assign(self._step.read_value())
        with tf.control_dependencies([is_kept]):
            return tuple(map(tf.identity, batch))
