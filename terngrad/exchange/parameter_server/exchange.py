"""The exchange through parameter servers: pushes, and results that no thread waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from terngrad.codecs.codec import Codec, Payload
from terngrad.codecs.planes import plane_count
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.exchange.ordering import unordered
from terngrad.exchange.parameter_server.client import Client
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.limits import MAX_NODES
from terngrad.ops.kernels import Kernels


class ParameterServerConnection(Connection):
    """A worker's connection to all ps."""

    def __init__(self, client: Client) -> None:
        """Uses a client that has reached them."""
        self.rank = client.rank
        self.size = client.size
        self._client = client

    def exchange(
        self, local_nodes: int, kernels: Kernels, step: tf.Variable
    ) -> ParameterServerExchange:
        """See base class."""
        return ParameterServerExchange(self._client, local_nodes, kernels, step)

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class."""
        operations = _Operations(self._client, 1)
        items = part.dtype.size * part.shape.num_elements()
        every = operations.run(f"gather/{name}", Kind.GATHER, items, part, None, part.dtype)
        return tf.reshape(every, [self.size, *part.shape])


class ParameterServerExchange(Exchange):
    """Sums on the ps; each worker computes as many consecutive nodes."""

    def __init__(
        self, client: Client, local_nodes: int, kernels: Kernels, step: tf.Variable
    ) -> None:
        """Joins `local_nodes` nodes of each worker; the operations belong to `step`.

        For sums of floats that do not depend on how nodes are spread over workers (law 4),
        `local_nodes` must be a power of two.

        Raises:
          ValueError: there are more than 65536 nodes.
        """
        self._operations = _Operations(client, local_nodes)
        self._kernels = kernels
        self._step = step
        self.local_nodes = local_nodes
        self.first_node = client.rank * local_nodes
        self.size = client.size * local_nodes
        if not 1 <= self.size <= MAX_NODES:
            raise ValueError(f"{self.size} nodes; allowed are 1 to {MAX_NODES}.")
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._nodes = tf.Variable(self.size, dtype=tf.int32, trainable=False)

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        local = tf.reduce_max(tf.stack(vectors), axis=0)
        return self._run(f"{name}/max", Kind.MAX, local.shape[0], local)

    def sum(self, codes: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """See base class."""
        local = self._kernels.sum(codes, plane_count(self.local_nodes))
        groups = local.shape[0]
        total = self._run(f"{name}/codes", Kind.CODES, groups, tf.bitcast(local, tf.int32))
        return tf.bitcast(tf.reshape(total, [groups, plane_count(self.size)]), tf.uint32)

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class."""
        local = [tree_sum(each) for each in zip(*values, strict=True)]
        flat = tf.concat([tf.reshape(value, [-1]) for value in local], 0)
        return _like(self._run(f"{name}/floats", Kind.FLOATS, flat.shape[0], flat), local)

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """See base class; float16 also travels as float16, rounded again on each way."""
        if values[0][0].dtype != tf.float16:
            return super().mean(values, name)
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        local = [tree_sum(each) / self.local_nodes for each in zip(*wide, strict=True)]
        flat = tf.cast(tf.concat([tf.reshape(value, [-1]) for value in local], 0), tf.float16)
        return _like(self._run(f"{name}/halves", Kind.HALVES, flat.shape[0], flat), local)

    def payload(self, codec: Codec) -> dict[int, Payload]:
        """See base class; a worker hands in what its nodes have together."""
        return codec.payload(self.size, self.local_nodes)

    def nodes(self) -> tf.Tensor:
        """See base class."""
        return self._nodes.read_value()

    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See base class."""
        found = []
        for i, value in enumerate(values):
            items = value.dtype.size * value.shape.num_elements()
            received = self._operations.run(
                f"broadcast/{i}", Kind.BROADCAST, items, value, None, value.dtype
            )
            found.append(tf.reshape(received, value.shape))
        return found

    def barrier(self) -> None:
        """See base class."""
        self._operations.run("barrier", Kind.MAX, 1, tf.zeros([1]), None, tf.float32)

    def _run(self, name: str, kind: Kind, items: int, local: tf.Tensor) -> tf.Tensor:
        """Runs an operation of a step, and counts its bytes."""
        step = self._step.read_value()
        operation = Operation(0, name, kind, items, self.local_nodes, self._operations.workers)
        self.bytes_sent.assign_add(items * operation.pushed_bytes)
        self.bytes_received.assign_add(items * operation.result_bytes)
        return self._operations.run(name, kind, items, local, step, local.dtype)


class _Operations:
    """Operations by name, each with the queue into which its results come.

    A result is waited for by no thread: TensorFlow goes on with other operations until the queue
    has it. So all of a step's exchanges can be under way together, with however few threads.
    """

    def __init__(self, client: Client, local_nodes: int) -> None:
        self.workers = client.size
        self._client = client
        self._local_nodes = local_nodes
        self._known: dict[str, tuple[int, tf.queue.FIFOQueue]] = {}
        self._calls: dict[str, int] = {}

    def run(
        self,
        name: str,
        kind: Kind,
        items: int,
        local: tf.Tensor,
        step: tf.Tensor | None,
        dtype: tf.DType,
    ) -> tf.Tensor:
        """Pushes `local` and returns the result, flat; outside of steps `step` is None."""
        index, results = self._find(name, kind, items, dtype)
        if step is None:
            step = tf.constant(self._calls.get(name, 0), tf.int64)
            self._calls[name] = self._calls.get(name, 0) + 1

        def push(at: np.ndarray, content: np.ndarray) -> np.ndarray:
            self._client.push(index, int(at), content)
            return np.int32(0)

        with tf.device("/CPU:0"):
            pushed = unordered(tf.numpy_function(push, [step, local], tf.int32))
            with tf.control_dependencies([pushed]):
                result = results.dequeue()
        size = Operation(0, name, kind, items, self._local_nodes, self.workers).result_bytes
        return tf.ensure_shape(result, [items * size // dtype.size])

    def _find(
        self, name: str, kind: Kind, items: int, dtype: tf.DType
    ) -> tuple[int, tf.queue.FIFOQueue]:
        if name not in self._known:
            with tf.init_scope(), tf.device("/CPU:0"):
                results = tf.queue.FIFOQueue(2, [dtype])

            def deliver(content: np.ndarray) -> None:
                with contextlib.suppress(tf.errors.OpError):  # a ps was lost, the queue is closed
                    results.enqueue(content.view(dtype.as_numpy_dtype))

            index = self._client.declare(
                name, kind, items, self._local_nodes, deliver, results.close
            )
            self._known[name] = index, results
        return self._known[name]


def _like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a flat tensor into tensors of the given ones' shapes."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
    return [
        tf.cast(tf.reshape(part, t.shape), part.dtype)
        for part, t in zip(parts, tensors, strict=True)
    ]
