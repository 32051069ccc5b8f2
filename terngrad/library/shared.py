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


def gather(group: Group, value: Any, what: str = "all_gather") -> list[Any]:
    """Returns the values of all processes, in the order of their ranks.

    Args:
      group: the processes.
      value: what JSON can hold.
      what: see `Group.all_gather`.
    """
    text = json.dumps(value).encode()
    lengths = group.all_gather(np.array(len(text), np.int64), what=what)
    padded = np.frombuffer(text.ljust(int(lengths.max())), np.uint8)
    return [json.loads(row.tobytes()) for row in group.all_gather(padded, what=what)]


class Shared:
    """Means and maxima of tensors over all nodes of all processes, within or without graphs.

    Operations of one object must not overlap: give each place of a program its own.
    """

    def __init__(self, group: Group, name: str, nodes: int = 1) -> None:
        """Joins `nodes` nodes of each process; `name` differs from those of other objects."""
        self._group = group
        self._name = name
        self._nodes = nodes
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._exchange: Exchange = _exchange(group, nodes, self._step)
        self._eager = {kind: tf.function(self._graph(kind)) for kind in ("max", "mean")}

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return int(self._exchange.bytes_sent)

    def mean(self, *nodes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the means of float tensors, of their shapes and types.

        Args:
          *nodes: equally many tensors of each node of this process.
        """
        return self._combined("mean", nodes)

    def max(self, *nodes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the elementwise largest of float tensors; see `mean`."""
        return self._combined("max", nodes)

    def _combined(self, kind: str, nodes: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        by_node = [[tf.convert_to_tensor(value) for value in values] for values in nodes]
        is_alone = self._group.connection is None and self._nodes == 1
        if is_alone or not by_node[0]:
            return by_node[0]
        self._group.check_open()
        function = self._eager[kind] if tf.executing_eagerly() else self._graph(kind)
        return function(by_node)

    def _graph(self, kind: str):
        def combine(by_node: list[list[tf.Tensor]]) -> list[tf.Tensor]:
            values = by_node[0]
            with tf.control_dependencies(values):  # a step without a batch is none
                tf.numpy_function(self._group.begin_step, [], [])
            shapes = [tuple(value.shape) for value in values]
            name = f"{self._name}/{kind}/{zlib.crc32(repr(shapes).encode()):x}"
            rows = [_row(node) for node in by_node]
            if kind == "max":
                found = self._exchange.max(rows, name)
            else:
                (found,) = self._exchange.mean([[row] for row in rows], name)
            with self._exchange.settled():
                self._step.assign_add(1)
                parts = tf.split(found, [int(np.prod(shape)) for shape in shapes])
                pairs = zip(parts, values, strict=True)
                return [tf.cast(tf.reshape(part, v.shape), v.dtype) for part, v in pairs]

        return combine


def _row(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns all values as float32 [n]."""
    return tf.concat([tf.reshape(tf.cast(value, tf.float32), [-1]) for value in values], 0)


def _exchange(group: Group, nodes: int, step: tf.Variable) -> Exchange:
    kernels = runtime.kernels().kernels
    if group.connection is None:
        return LocalExchange(nodes, kernels)
    return group.connection.exchange(nodes, kernels, step)
