"""Small values that processes share beside gradients: facts of Python, and tensors of a step."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from terngrad.exchange.exchange import Exchange
from terngrad.exchange.local import LocalExchange
from terngrad.library.group import Group
from terngrad.training import runtime


def gather(group: Group, value: Any) -> list[Any]:
    """Returns the values of all processes, in the order of their ranks.

    Args:
      group: the processes.
      value: what JSON can hold.
    """
    text = json.dumps(value).encode()
    lengths = group.all_gather(np.array(len(text), np.int64))
    padded = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
    return [json.loads(row.tobytes()) for row in group.all_gather(padded)]


class Shared:
    """Means and maxima of tensors over all processes, one for each node, within or without graphs.

    Operations of one object must not overlap: give each place of a program its own.
    """

    def __init__(self, group: Group, name: str) -> None:
        """Joins the processes of a group; `name` differs from those of other objects."""
        self._group = group
        self._name = name
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._exchange: Exchange = _exchange(group, self._step)
        self._eager = {kind: tf.function(self._graph(kind)) for kind in ("max", "mean")}

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return int(self._exchange.bytes_sent)

    def mean(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the means of float tensors, of their shapes and types."""
        return self._combined("mean", values)

    def max(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the elementwise largest of float tensors, of their shapes and types."""
        return self._combined("max", values)

    def _combined(self, kind: str, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        values = [tf.convert_to_tensor(value) for value in values]
        if self._group.connection is None or not values:
            return values
        self._group.check_open()
        function = self._eager[kind] if tf.executing_eagerly() else self._graph(kind)
        return function(values)

    def _graph(self, kind: str):
        def combine(values: list[tf.Tensor]) -> list[tf.Tensor]:
            tf.numpy_function(self._group.pulse.begin, [], [])
            row = tf.concat([tf.reshape(tf.cast(v, tf.float32), [-1]) for v in values], 0)
            shapes = [tuple(value.shape) for value in values]
            name = f"{self._name}/{kind}/{zlib.crc32(repr(shapes).encode()):x}"
            if kind == "max":
                found = self._exchange.max([row], name)
            else:
                (found,) = self._exchange.mean([[row]], name)
            with self._exchange.settled():
                self._step.assign_add(1)
                parts = tf.split(found, [int(np.prod(shape)) for shape in shapes])
                pairs = zip(parts, values, strict=True)
                return [tf.cast(tf.reshape(part, v.shape), v.dtype) for part, v in pairs]

        return combine


def _exchange(group: Group, step: tf.Variable) -> Exchange:
    kernels = runtime.kernels().kernels
    if group.connection is None:
        return LocalExchange(1, kernels)
    return group.connection.exchange(1, kernels, step)
