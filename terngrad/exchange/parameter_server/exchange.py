"""The exchange through parameter servers; no thread waits for a result."""

from __future__ import annotations

import collections
import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.coordination import groups
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.connection import Connection, bytes_of
from terngrad.exchange.exchange import (
    CodedPayload,
    Exchange,
    Owner,
    Payload,
    begin_span,
    unordered,
)
from terngrad.exchange.parameter_server.operations import Kind, Operation, nodes_in_result
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.ops.packing import Packing
from terngrad.service.messages import LONGEST_VALUE, View, longest_value


class StateSizeError(ValueError):
    """A received state belongs to other variables than this worker has."""


class ParameterServerConnection(Connection):
    """A worker's connection to all ps."""

    repeats_steps = True

    def __init__(self, client: Client, *, owners_change: bool = False) -> None:
        """Uses a client that has reached all ps.

        Args:
          client: to the ps.
          owners_change: whether views may lack workers, and all members of a view make its steps.
        """
        self.rank = client.rank
        self.size = client.size
        self.largest_part = longest_value(self.size)
        self.owners_change = owners_change
        self._client = client
        self._is_live = False
        self._rounds: collections.Counter[str] = collections.Counter()
        self._exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()
        self._owner = self._owner_of(range(self.size))  # of shares in the current view

    def exchange(self, local_nodes: int, kernels: GradientKernels, step: tf.Variable) -> Exchange:
        """See base class."""
        exchange = self._make_exchange(local_nodes, kernels, step)
        if self.owners_change:
            exchange.begin_view(self._owner)
            self._exchanges.add(exchange)
        return exchange

    def _make_exchange(
        self, local_nodes: int, kernels: GradientKernels, step: tf.Variable
    ) -> Exchange:
        return ParameterServerExchange(self._client, local_nodes, kernels, step)

    def all_gather(self, part: tf.Tensor, name: str) -> tf.Tensor:
        """See base class; at most `largest_part` bytes a worker."""
        found = self._gather(part.numpy().tobytes(), name)
        arrays = [np.frombuffer(found[rank], part.dtype.as_numpy_dtype) for rank in sorted(found)]
        return tf.reshape(tf.constant(np.stack(arrays)), [len(arrays), *part.shape])

    def broadcast(self, value: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the tensor of worker 0, in parts that ps 0 passes on; the others send nothing.

        All calls share one name, since a ps knows few, and are told apart by their number.
        """
        del name
        own, parts = value.numpy().tobytes(), []
        for start in range(0, len(own), LONGEST_VALUE):
            part = own[start : start + LONGEST_VALUE] if self.rank == 0 else b""
            parts.append(self._gather(part, "copy")[0])
        copied = np.frombuffer(b"".join(parts), value.dtype.as_numpy_dtype)
        return tf.constant(copied.reshape(value.shape))

    def _gather(self, content: bytes, name: str) -> Mapping[int, bytes]:
        """Returns the contents of all workers; calls with a name are counted."""
        round_ = self._rounds[name]
        self._rounds[name] += 1
        return self._client.coordination.gather(f"tensor:{name}", content, round_)

    @property
    def members(self) -> tuple[int, ...]:
        """The workers of the current view; empty before the first one."""
        return groups.unpack(self._client.coordination.view.members)

    def values_of_view(self, name: str, content: bytes, round_: int) -> Mapping[int, bytes]:
        """Returns the values of all workers of the current view; see `CoordinatorClient.gather`."""
        return self._client.coordination.gather(name, content, round_)

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """See base class; if some workers already train, one of them sends its state.

        Raises:
          MembershipError: the training ends.
          StateSizeError: the received state is that of other variables.
        """
        coordination = self._client.coordination
        self._leave()
        while True:
            self._client.wait_for_servers()
            view = coordination.next_view(int(state[0]), is_live=self._is_live)
            receivers = groups.unpack(view.receivers)
            try:
                self._enter(view)
                if self.rank == view.donor and receivers:
                    coordination.give_state(view, (bytes_of(v.numpy()).data for v in state))
                elif self.rank in receivers:
                    self._is_live = False  # until it has that state: its own is out of date
                    _assign(state, coordination.take_state())
                    self._is_live = True
                    coordination.confirm_state(view)
            except InterruptionError:
                continue
            self._is_live = True
            return view.is_first

    def _leave(self) -> None:
        """Leaves the last view."""

    def _enter(self, view: View) -> None:
        """Prepares the exchange of a new view.

        Raises:
          InterruptionError: it is no longer valid.
        """
        if not self.owners_change:
            return
        self._owner = self._owner_of(groups.unpack(view.members))
        for exchange in self._exchanges:
            exchange.begin_view(self._owner)

    def _owner_of(self, members: Sequence[int]) -> Owner:
        """Returns which shares this worker owns among the members of a view."""
        return Owner(members.index(self.rank), len(members), self.size)

    @property
    def gather_copies(self) -> float:
        """See base class; ps 0 sends the parts of all to all."""
        return self.size * self.size

    @property
    def exchange_copies(self) -> float:
        """See base class; what all workers send is spread over the ps."""
        return max(1.0, self.size / len(self._client.servers.used))

    def was_interrupted(self) -> bool:
        """See base class."""
        return self._client.steps.interrupted

    @property
    def version(self) -> int:
        """See base class."""
        return self._client.steps.view.number

    def give_up(self, why: str, *, alone: bool = False) -> None:
        """See base class."""
        self._client.give_up(why, alone=alone)

    def is_excluded(self, step: int) -> bool:
        """See base class."""
        return self._client.steps.is_excluded(step)

    @property
    def saver(self) -> int | None:
        """See base class."""
        return self._client.saver

    @property
    def is_saver(self) -> bool:
        """See base class; a worker that is still joining has no state to save."""
        return self._is_live and self.saver == self.rank

    @property
    def has_backup_workers(self) -> bool:
        """See base class."""
        return self._client.steps.has_backup_workers


class ParameterServerExchange(Exchange):
    """An exchange whose sums the ps make."""

    packs_codes = True
    hops = 2

    def __init__(
        self, client: Client, local_nodes: int, kernels: GradientKernels, step: tf.Variable
    ) -> None:
        """Joins `local_nodes` nodes of each worker; the operations belong to `step`.

        For errors see base class. If a step is made without some workers, `nodes` returns the
        number of nodes in its results. After `begin_view` the client knows the owners of shares,
        and graphs do not: sums and codes of all rows are there, those of others as zeros.
        """
        super().__init__(client.rank, client.size, local_nodes, kernels)
        self._client = client
        self._step = step
        self._counted = self.num_nodes
        self._operations = _Operations(client, kernels.packing, self._count)
        self._unsettled: list[tf.Tensor] = []  # results of the step that is being traced
        self._took_part = tf.constant(True)  # whether this worker is in that step's results

    def share(self, rows: int) -> tuple[int, int]:
        """See base class; all rows where owners change."""
        return (0, rows) if self.owner else super().share(rows)

    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        return self._run(self._operation(f"{name}/max", Kind.MAX, local), local)[0]

    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        operation = self._operation(f"{name}/codes", Kind.CODES, local, max_code)
        result, lacks_own = self._words(operation, local)
        if not operation.leaves_out_own:
            return result
        sum_of = lambda *parts: self._kernels.sum(parts, operation.total_planes)
        return tf.cond(lacks_own, lambda: sum_of(result, local), lambda: sum_of(result))

    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        kind = Kind.SCATTER_CODES
        operation = self._operation(f"{name}/scattered", kind, local, max_code)
        first, end = self.share(local.shape[0])
        return self._words(operation, local)[0][first:end]

    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        first, end = self.share(rows)
        own = tf.pad(share, [[first, rows - end], [0, 0]])
        kind, workers = Kind.GATHER_CODES, self._client.size
        operation = Operation(f"{name}/gathered", kind, rows, 1, workers, max_code)
        return self._words(operation, own)[0]

    def _words(self, operation: Operation, local: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what `_run` does, the result of codes as uint32 [items, planes]."""
        words, lacks_own = self._run(operation, tf.bitcast(local, tf.int32))
        shape = [operation.items, operation.result_planes]
        return tf.bitcast(tf.reshape(words, shape), tf.uint32), lacks_own

    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        return self._run(self._operation(f"{name}/floats", Kind.FLOATS, local), local)[0]

    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        halves = tf.cast(local, tf.float16)
        return self._run(self._operation(f"{name}/halves", Kind.HALVES, halves), halves)[0]

    def traffic_of_coded_sums(self, payload: Payload, coded: CodedPayload) -> Payload:
        """See base class; an owner gets the exact sums of its share, and pushes their codes."""
        return Payload(
            payload.sent + coded.codes * coded.own + coded.scales,
            payload.received * coded.own + coded.codes + coded.scales,
        )

    @property
    def nodes_in_result(self) -> int:
        """See base class; one of two workers adds its own nodes to the other's."""
        return nodes_in_result(self.num_nodes, self.local_nodes)

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """See base class."""
        with tf.control_dependencies([total]):
            return self._nodes.read_value()

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """See base class; an abandoned step ends here with an error."""
        graph = tf.compat.v1.get_default_graph()
        results = [result for result in self._unsettled if result.graph is graph]
        self._unsettled = []

        def commit(step: np.ndarray) -> tuple[np.bool_, np.bool_]:
            took_part = self._client.steps.takes_part(int(step))
            return np.bool_(self._client.steps.commit(int(step))), np.bool_(took_part)

        with tf.control_dependencies(results):
            may_go_on, self._took_part = tf.numpy_function(
                commit, [self._step.read_value()], [tf.bool, tf.bool]
            )
        check = tf.debugging.Assert(
            may_go_on, ["the step was abandoned: a worker or ps joins or leaves"]
        )
        with tf.control_dependencies([check]):
            yield

    def took_part(self) -> tf.Tensor:
        """See base class."""
        return tf.ensure_shape(self._took_part, [])

    def require_in_next_step(self) -> None:
        """See base class."""
        self._client.require_in_next_step()

    def _operation(self, name: str, kind: Kind, local: tf.Tensor, max_code: int = 1) -> Operation:
        items, workers = local.shape[0], self._client.size
        return Operation(name, kind, items, self.local_nodes, workers, max_code)

    def _run(self, operation: Operation, local: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs an operation of the current step and counts its bytes; see `_Operations.run`."""
        result, lacks_own, octets = self._operations.run(operation, local, self._step.read_value())
        self.bytes_sent.assign_add(octets[0])
        self.bytes_received.assign_add(octets[1])
        if not tf.executing_eagerly():
            self._unsettled.append(result)
        return result, lacks_own

    def _count(self, workers: int) -> None:
        """Notes how many workers are in the results that arrive now."""
        if workers * self.local_nodes != self._counted:
            self._nodes.assign(workers * self.local_nodes)
            # Last: when another thread finds this count, its result may be divided at once.
            self._counted = workers * self.local_nodes


class _Operations:
    """Operations by name, each with the queue for its results.

    No thread waits for a result: TensorFlow runs other operations until the queue holds it. So a
    few threads are enough to run all exchanges of a step at the same time.
    """

    def __init__(self, client: Client, packing: Packing, count: Callable[[int], None]) -> None:
        self._client, self._packing = client, packing
        self._count = count
        self._known: dict[str, tuple[int, tf.queue.FIFOQueue]] = {}
        self._traces: dict[str, contextlib.AbstractContextManager] = {}  # of operations under way

    def run(
        self, operation: Operation, local: tf.Tensor, step: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Pushes `local`.

        Returns:
          The result, flat and with the same dtype, whether `local` is to be added to it, and the
          bytes that were sent and received for it: int64 [2], zeros if the step was abandoned.
        """
        index, results = self._find(operation, local.dtype)

        def push(at: np.ndarray, content: np.ndarray) -> np.ndarray:
            self._traces[operation.name] = begin_span(operation.name, "TerngradPushPull")
            self._client.steps.push(index, int(at), content)
            return np.int32(0)

        with tf.device("/CPU:0"):
            pushed = unordered(tf.numpy_function(push, [step, local], tf.int32))
            with tf.control_dependencies([pushed]):
                result, lacks_own, octets = results.dequeue()
        size = operation.items * operation.result_bytes
        result = tf.ensure_shape(result, [size // local.dtype.size])
        return result, tf.ensure_shape(lacks_own, []), tf.ensure_shape(octets, [2])

    def _find(self, operation: Operation, dtype: tf.DType) -> tuple[int, tf.queue.FIFOQueue]:
        name = operation.name
        if name not in self._known:
            with tf.init_scope(), tf.device("/CPU:0"):
                results = tf.queue.FIFOQueue(2, [dtype, tf.bool, tf.int64])
                flags = tf.constant(False), tf.constant(True)

            def deliver(
                content: np.ndarray, workers: int, lacks_own: bool, octets: tuple[int, int]
            ) -> None:
                if trace := self._traces.pop(name, None):
                    trace.__exit__(None, None, None)
                with contextlib.suppress(tf.errors.OpError):  # a ps was lost: the queue is closed
                    self._count(workers)
                    tf.raw_ops.QueueEnqueueV2(  # half the CPU time of results.enqueue
                        handle=results.queue_ref,
                        components=[
                            content.view(dtype.as_numpy_dtype),
                            flags[lacks_own],
                            np.array(octets, np.int64),
                        ],
                    )

            index = self._client.declare(operation, deliver, results.close, self._packing)
            self._known[name] = index, results
        return self._known[name]


def _assign(variables: Sequence[tf.Variable], content: bytes) -> None:
    """Assigns a state to all variables.

    Raises:
      StateSizeError: the state belongs to other variables.
    """
    sizes = [variable.dtype.size * variable.shape.num_elements() for variable in variables]
    if sum(sizes) != len(content):
        raise StateSizeError(f"a received state has {len(content)} bytes; allowed are {sum(sizes)}")
    start = 0
    for variable, size in zip(variables, sizes, strict=True):
        count = variable.shape.num_elements()
        part = np.frombuffer(content, variable.dtype.as_numpy_dtype, count, start)
        variable.assign(part.reshape(variable.shape))
        start += size
