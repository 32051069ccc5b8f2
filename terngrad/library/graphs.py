"""Exchanges within graphs of TensorFlow: not in those for XLA, and one call after the other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Found = TypeVar("_Found")


def check_graph() -> None:
    """Raises ValueError where the current graph is compiled by XLA."""
    graph = tf.compat.v1.get_default_graph() if not tf.executing_eagerly() else None
    while graph is not None:
        if _is_for_xla(graph):
            raise ValueError(
                "jit_compile=True: XLA cannot compile the exchange between processes; allowed is "
                "jit_compile=False, in model.compile or tf.function"
            )
        graph = getattr(graph, "outer_graph", None)


def _is_for_xla(graph: tf.Graph) -> bool:
    context = graph._get_control_flow_context()
    while context is not None:
        if context.IsXLAContext():
            return True
        context = context.outer_context
    return False


class Calls:
    """Calls within one graph, each of which waits for the one before: they share names."""

    def __init__(self) -> None:
        self._graph: weakref.ref | None = None
        self._last: list[tf.Tensor] = []

    def in_turn(
        self,
        function: Callable[[Any], _Found],
        inputs: Any,
        ends: Callable[[_Found], list[tf.Tensor]],
    ) -> _Found:
        """Calls a function after the last call within the same graph.

        Args:
          function: adds operations to the graph.
          inputs: tensors, which it takes.
          ends: returns the tensors, of what it returns, that are there when it has run.
        """
        graph = tf.compat.v1.get_default_graph()
        before = self._last if self._graph and self._graph() is graph else []
        with tf.control_dependencies(before):
            found = function(tf.nest.map_structure(tf.identity, inputs) if before else inputs)
        self._graph, self._last = weakref.ref(graph), ends(found)
        return found
