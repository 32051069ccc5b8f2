"""The exchange through parameter servers: pushes, and results that no thread waits for."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from terngrad.codecs.codec import Codec, Payload
from terngrad.exchange.connection import Connection, InterruptionError
from terngrad.exchange.exchange import Exchange, tree_sum
from terngrad.exchange.ordering import unordered
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.limits import MAX_NODES
from terngrad.ops.kernels import Kernels
from terngrad.planes import plane_count


class ParameterServerConnection(Connection):
    """A worker's connection to all ps."""

    def __init__(self, client: Client) -> None:
        """Uses a client that has reached them."""
        self.rank = client.rank
        self.size = client.size
        self._client = client
        self._is_live = False
        self._rounds: collections.Counter[str] = collections.Counter()

    def exchange(
        self, local_nodes: int, kernels: Kernels, step: tf.Variable
    ) -> ParameterServerExchange:
        """See base class."""
        return ParameterServerExchange(self._client, local_nodes, kernels, step)

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class; at most 64 KB a worker."""
        round_ = self._rounds[name]
        self._rounds[name] += 1
        found = self._client.meeting.gather(f"tensor:{name}", part.numpy().tobytes(), round_)
        arrays = [np.frombuffer(found[rank], part.dtype.as_numpy_dtype) for rank in sorted(found)]
        return tf.reshape(tf.constant(np.stack(arrays)), [len(arrays), *part.shape])

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """See base class; one of the workers that were training gives its state, if there is one.

        Raises:
          MembershipError: the training ends.
        """
        meeting = self._client.meeting
        while True:
            self._client.wait_for_servers()
            view = meeting.stand(int(state[0]), is_live=self._is_live)
            receivers = groups.unpack(view.receivers)
            try:
                if self.rank == view.donor and receivers:
                    meeting.give_state(view, (_bytes_of(v) for v in state))
                elif self.rank in receivers:
                    self._is_live = False  # until it has that state: nobody may go on from its own
                    _assign(state, meeting.take_state())
            except InterruptionError:
                continue
            self._is_live = True
            return view.is_first

    def was_interrupted(self) -> bool:
        """See base class."""
        return self._client.interrupted

    def follows(self, step: int) -> bool:
        """See base class."""
        return self._client.follows(step)

    @property
    def leads(self) -> bool:
        """See base class; a worker that only joins has no state to save."""
        return self._is_live and self._client.leads

    @property
    def spares(self) -> bool:
        """See base class."""
        return self._client.spares


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
        self.local_nodes = local_nodes
        self.first_node = client.rank * local_nodes
        self.size = client.size * local_nodes
        if not 1 <= self.size <= MAX_NODES:
            raise ValueError(f"{self.size} nodes; allowed are 1 to {MAX_NODES}.")
        self._client = client
        self._kernels = kernels
        self._step = step
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        # Of the step under way; fewer than `size` where a step is made without some workers.
        self._nodes = tf.Variable(self.size, dtype=tf.int32, trainable=False)
        self._counted = self.size
        self._operations = _Operations(client, local_nodes, self._count)
        self._unsettled: list[tf.Tensor] = []  # results of the step that is being traced

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

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """See base class."""
        with tf.control_dependencies([total]):
            return self._nodes.read_value()

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """See base class; a step that was given up ends here with an error."""
        graph = tf.compat.v1.get_default_graph()
        results = [result for result in self._unsettled if result.graph is graph]
        self._unsettled = []
        commit = lambda step: np.bool_(self._client.commit(int(step)))
        with tf.control_dependencies(results):
            may_go_on = tf.numpy_function(commit, [self._step.read_value()], tf.bool)
        check = tf.debugging.Assert(may_go_on, ["the step was given up: the workers change"])
        with tf.control_dependencies([check]):
            yield

    def insist(self) -> None:
        """See base class."""
        self._client.insist()

    def _run(self, name: str, kind: Kind, items: int, local: tf.Tensor) -> tf.Tensor:
        """Runs an operation of a step, and counts its bytes."""
        step = self._step.read_value()
        operation = Operation(name, kind, items, self.local_nodes, self._client.size)
        self.bytes_sent.assign_add(items * operation.pushed_bytes)
        self.bytes_received.assign_add(items * operation.result_bytes)
        result = self._operations.run(name, kind, items, local, step)
        if not tf.executing_eagerly():
            self._unsettled.append(result)
        return result

    def _count(self, workers: int) -> None:
        """Notes of how many workers the results are that come now."""
        if workers * self.local_nodes != self._counted:
            self._nodes.assign(workers * self.local_nodes)
            # Only now: another thread that finds it noted lets its result be divided at once.
            self._counted = workers * self.local_nodes


class _Operations:
    """Operations by name, each with the queue into which its results come.

    A result is waited for by no thread: TensorFlow goes on with other operations until the queue
    has it. So all of a step's exchanges can be under way together, with however few threads.
    """

    def __init__(self, client: Client, local_nodes: int, count: Callable[[int], None]) -> None:
        self._client = client
        self._local_nodes = local_nodes
        self._count = count
        self._known: dict[str, tuple[int, tf.queue.FIFOQueue]] = {}

    def run(
        self, name: str, kind: Kind, items: int, local: tf.Tensor, step: tf.Tensor
    ) -> tf.Tensor:
        """Pushes `local` and returns the result, flat and of its type."""
        operation = Operation(name, kind, items, self._local_nodes, self._client.size)
        index, results = self._find(operation, local.dtype)

        def push(at: np.ndarray, content: np.ndarray) -> np.ndarray:
            self._client.push(index, int(at), content)
            return np.int32(0)

        with tf.device("/CPU:0"):
            pushed = unordered(tf.numpy_function(push, [step, local], tf.int32))
            with tf.control_dependencies([pushed]):
                result = results.dequeue()
        return tf.ensure_shape(result, [items * operation.result_bytes // local.dtype.size])

    def _find(self, operation: Operation, dtype: tf.DType) -> tuple[int, tf.queue.FIFOQueue]:
        name = operation.name
        if name not in self._known:
            with tf.init_scope(), tf.device("/CPU:0"):
                results = tf.queue.FIFOQueue(2, [dtype])

            def deliver(content: np.ndarray, workers: int) -> None:
                with contextlib.suppress(tf.errors.OpError):  # a ps was lost, the queue is closed
                    self._count(workers)
                    results.enqueue(content.view(dtype.as_numpy_dtype))

            index = self._client.declare(
                name,
                operation.kind,
                operation.items,
                operation.local_nodes,
                deliver,
                results.close,
            )
            self._known[name] = index, results
        return self._known[name]


def _bytes_of(variable: tf.Variable) -> memoryview:
    return np.ascontiguousarray(variable.numpy()).reshape(-1).view(np.uint8).data


def _assign(variables: Sequence[tf.Variable], content: bytes) -> None:
    """Assigns all of a state; ValueError if it is one of other variables."""
    sizes = [variable.dtype.size * variable.shape.num_elements() for variable in variables]
    if sum(sizes) != len(content):
        raise ValueError(f"a state of {len(content)} bytes came; this worker's has {sum(sizes)}")
    start = 0
    for variable, size in zip(variables, sizes, strict=True):
        count = variable.shape.num_elements()
        part = np.frombuffer(content, variable.dtype.as_numpy_dtype, count, start)
        variable.assign(part.reshape(variable.shape))
        start += size


def _like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Cuts a flat tensor into tensors of the given ones' shapes."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
    return [
        tf.cast(tf.reshape(part, t.shape), part.dtype)
        for part, t in zip(parts, tensors, strict=True)
    ]
