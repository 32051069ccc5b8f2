"""Tensors that processes share beside gradients: their means, sums and maxima."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from terngrad.cluster.progress import STEP
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import tree_sum
from terngrad.library.graphs import CallOrder, begin_after, check_graph
from terngrad.training import runtime
from terngrad.training.nodes import row_of, values_of_row
from terngrad.training.reduction import make_exchange

OPERATIONS = ("mean", "sum", "max")
_PIECE = tf.uint16  # each float32 holds one exactly


class Shared:
    """Means, sums and maxima of tensors over all nodes of all processes, within or without graphs.

    Operations of one object must not overlap: give each place of a program its own.
    """

    def __init__(
        self, connection: Connection | None, begin: Callable[[str], None], name: str, nodes: int = 1
    ) -> None:
        """Joins `nodes` nodes of each process.

        Args:
          connection: to the other processes; None if there are none.
          begin: called before each operation with its name in messages; see `Group.begin_step`.
          name: differs from those of other objects.
          nodes: of each process.
        """
        self._begin = begin
        self._name = name
        self._nodes = nodes
        self._is_alone = connection is None and nodes == 1
        self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        kernels = runtime.kernels().kernels
        self._exchange = make_exchange(connection, nodes, kernels, self._step)
        self._eager: dict[tuple, Callable] = {}  # TensorFlow warns of a function for many shapes

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return int(self._exchange.bytes_sent)

    def mean(self, *nodes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the means of float tensors, of their shapes and types.

        Args:
          *nodes: equally many tensors of each node of this process.
        """
        return self.combine("mean", nodes)

    def max(self, *nodes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the elementwise largest of float tensors; see `mean`."""
        return self.combine("max", nodes)

    def combine(
        self, kind: str, nodes: Sequence[Sequence[tf.Tensor]], what: str = STEP
    ) -> list[tf.Tensor]:
        """Returns what one of `OPERATIONS` gives, in the shapes and types of a node's tensors.

        Args:
          kind: the operation.
          nodes: tensors of each node of this process, computed in float32.
          what: name of a call outside graphs in messages.
        """
        by_node = [[tf.convert_to_tensor(value) for value in values] for values in nodes]
        if self._is_alone or not by_node[0]:
            return by_node[0]
        if not tf.executing_eagerly():
            return self._combine(by_node, kind)
        key = (kind, what, *((value.shape, value.dtype) for value in by_node[0]))
        if key not in self._eager:
            combine = functools.partial(self._combine, kind=kind, what=what)
            self._eager[key] = tf.function(combine, autograph=False)
        return self._eager[key](by_node)

    def gather(self, value: tf.Tensor, what: str = STEP) -> list[tf.Tensor]:
        """Returns the tensors of all processes, bit for bit, in the order of their ranks.

        Each process adds zeros to the others' 16-bit pieces, so any exchange can do it. It is meant
        for few values: a piece takes the bytes of a float32, once for each process.

        Args:
          value: of numbers, of a fixed shape.
          what: see `combine`.
        """
        if self._is_alone:
            return [tf.convert_to_tensor(value)]
        wide = tf.cast(value, tf.int32) if value.dtype.size == 1 else value
        pieces = tf.cast(tf.bitcast(wide, _PIECE), tf.float32)
        size, rank = self._exchange.num_nodes, self._exchange.first_node
        rows = [pieces if i == rank else tf.zeros_like(pieces) for i in range(size)]
        (found,) = self.combine("sum", [[tf.stack(rows)]], what)
        pieces = tf.cast(found, _PIECE)
        if wide.dtype.size == _PIECE.size:
            pieces = tf.ensure_shape(pieces, [size, *wide.shape])
        rows = tf.unstack(tf.bitcast(pieces, wide.dtype))
        return [tf.cast(row, value.dtype) for row in rows]

    def _combine(
        self, by_node: list[list[tf.Tensor]], kind: str, what: str = STEP
    ) -> list[tf.Tensor]:
        values = by_node[0]
        begin_after(values, lambda: self._begin(what))
        shapes = [tuple(value.shape) for value in values]
        name = f"{self._name}/{kind}/{zlib.crc32(repr(shapes).encode()):x}"
        rows = [row_of(node) for node in by_node]
        if kind == "max":
            found = self._exchange.max(rows, name)
        elif kind == "sum":
            (found,) = self._exchange.float_sum([[row] for row in rows], name)
        else:
            (found,) = self._exchange.mean([[row] for row in rows], name)
        with self._exchange.settled():
            self._step.assign_add(1)
            return values_of_row(found, values)


class AllReduce:
    """Reduces tensors of any numbers over all processes; see `Group.all_reduce`."""

    def __init__(self, connection: Connection | None, begin: Callable[[str], None]) -> None:
        """For the arguments see `Shared`."""
        self._shared = Shared(connection, begin, "all_reduce")
        self._call_order = CallOrder()

    @tf.autograph.experimental.do_not_convert  # else a function around it takes seconds to trace
    def __call__(self, value: Any, op: str) -> Any:
        """See `Group.all_reduce`."""
        if op not in OPERATIONS:
            raise ValueError(f"all_reduce: op is {op!r}; allowed are {', '.join(OPERATIONS)}")
        check_graph()
        tensors = [_tensor(each) for each in tf.nest.flatten(value)]
        for tensor in tensors:
            _check(tensor, op)
        if tf.executing_eagerly():
            found = self._reduced(tensors, op)
        else:
            found = self._reduced(self._call_order.delayed(tensors), op)
            self._call_order.end(found)
        return tf.nest.pack_sequence_as(value, found)

    def _reduced(self, tensors: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Reduces floats together, and one after the other what float32 cannot hold."""
        shapes = ", ".join(f"{tensor.dtype.name}{list(tensor.shape)}" for tensor in tensors)
        what = f"all_reduce: {op} of {shapes}"[:200]
        found = list(tensors)
        kinds = [tensor.dtype for tensor in tensors]
        floats = [i for i, kind in enumerate(kinds) if kind.is_floating and kind.size <= 4]
        reduced = self._shared.combine(op, [[tensors[i] for i in floats]], what)
        for i, each in zip(floats, reduced, strict=True):
            found[i] = each
        last = [found[floats[0]]] if floats else []
        for i in (i for i in range(len(tensors)) if i not in floats):
            with tf.control_dependencies(last):  # they share names
                found[i] = _joined(self._shared.gather(tf.identity(tensors[i]), what), op)
            last = [found[i]]
        return found


def _joined(rows: Sequence[tf.Tensor], op: str) -> tf.Tensor:
    """Reduces the tensors of all processes, on each with the same bits."""
    if op == "max":
        is_bool = rows[0].dtype == tf.bool
        return tf.reduce_any(rows, 0) if is_bool else tf.reduce_max(rows, 0)
    total = tree_sum(rows)
    return total / len(rows) if op == "mean" else total


def _tensor(value: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise TypeError(
            f"all_reduce: a value is {kind}; allowed are numbers, bools, arrays and tensors of "
            "these, and lists, tuples and dicts of all of them"
        ) from None


def _check(tensor: tf.Tensor, op: str) -> None:
    """Raises TypeError or ValueError if a tensor cannot be reduced."""
    name = tensor.dtype.name
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise TypeError(f"all_reduce: a value is {name}; allowed are real numbers and bools")
    if tensor.dtype.is_bool and op != "max":
        raise TypeError(f"all_reduce: op={op!r} of bool; allowed is max: whether any is true")
    if tensor.dtype.is_integer and op == "mean":
        raise TypeError(f"all_reduce: op='mean' of {name}; allowed are floats: cast, or take sum")
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"all_reduce: a value has the shape {tensor.shape}; allowed are fixed ones"
        )
