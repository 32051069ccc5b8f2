"""The contract of an exchange: operations on a group of nodes.

A process computes one or more of the group's nodes. Each operation takes the values of the local
nodes, combines them in memory, joins one flat tensor with those of the other processes, and returns
the result, which all nodes share. Operations of one step may overlap: the processes match them by
`name`, which must be the same on all of them. Operations with different shapes must have different
names.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.layout import MAX_NODES, MAX_SUM
from terngrad.ops.gradient_kernels import EncodeInputs, GradientKernels, Sums
from terngrad.parts import Parts
from terngrad.planes import GROUP, padded, plane_count, share_of

_FINGERPRINT = re.compile(r"^[0-9a-f]{32}/")


@dataclasses.dataclass(frozen=True)
class Payload:
    """Bytes of one variable that one node sends and receives in a step, without headers."""

    sent: float
    received: float


class CodedPayload(NamedTuple):
    """Bytes of one variable's sums that are coded again.

    Attributes:
      codes: of all owners.
      scales: of all owners.
      own: the part of the bucket that this process owns, 0 to 1.
    """

    codes: float
    scales: float
    own: float


class Owner(NamedTuple):
    """Which of the owners of shares a process is; they own the shares in turn.

    Attributes:
      index: of this owner.
      count: of all owners.
      shares: of each bucket; at least as many.
    """

    index: int
    count: int
    shares: int

    @property
    def own(self) -> range:
        """The shares of this owner."""
        return range(self.index, self.shares, self.count)


@dataclasses.dataclass(frozen=True)
class LocalBucket:
    """The codes that the nodes of a process add to a sum, and what to make of the sum.

    Attributes:
      name: of the operation, see above.
      max_code: largest magnitude of a node's code.
      encode: returns the codes of each local node, uint32 [M / 32, k] (see planes.py).
      variables: index of each of the bucket's v variables in the layout.
      shapes: of the variables, in the order of their codes.
      units: float32 [p], the value of a code of 1 in each part of the variables.
      parts: of each variable, see `GradientKernels`.
      decoded: whether means are wanted instead of the sum.
      encoder: a native kernel encodes any range of codes as `encode` does, one of
        `ternary.ENCODERS`; None = there is none.
      nodes: what the kernel encodes, for each local node.
    """

    name: str
    max_code: int
    encode: Callable[[], list[tf.Tensor]]
    variables: tuple[int, ...]
    shapes: Sequence[tuple[int, ...]]
    units: tf.Tensor
    parts: tuple[Parts, ...] = ()
    decoded: bool = True
    encoder: str | None = None
    nodes: Sequence[EncodeInputs] = ()

    @property
    def elements(self) -> int:
        """M, the number of values that each node encodes, before padding."""
        return sum(map(math.prod, self.shapes))


class Summed(NamedTuple):
    """The result of `Exchange.sum_codes`.

    Attributes:
      codes: of each local node, uint32 [M / 32, k].
      result: mean gradients, in the shapes of the variables; if the bucket is not to be decoded,
        their sum.
    """

    codes: list[tf.Tensor]
    result: list[tf.Tensor] | Sums


class Exchange(abc.ABC):
    """Operations over all nodes of a training run, of which each process has the same number.

    If this number is a power of two, sums of floats do not depend on how nodes are spread over
    processes (law 4). An engine writes the functions that join; one that can encode, send and
    decode parts at the same time overrides `sum_codes`.

    Attributes:
      first_node: global index of this process' first node; its nodes are consecutive.
      local_nodes: nodes that this process computes.
      num_nodes: nodes in the group, on all processes.
      sums_local_nodes: whether a process sends the sum over its nodes, not each node's codes.
      packs_codes: whether codes travel in a prefix code (terngrad/prefix_code.py), in fewer bytes
        than their planes.
      hops: messages in a row until what a process sends reaches another one.
      owner: which of the owners of shares this process is, where they may change; else None.
      at_new_owners: called when they may have changed, between two steps.
      steps: int64 scalar variable, steps whose results were final; see `count_step`.
      bytes_sent: int64 scalar variable, bytes that this process has sent.
      bytes_received: int64 scalar variable, bytes that it has received.
    """

    sums_local_nodes = True
    packs_codes = False
    hops = 1
    owner: Owner | None = None

    def __init__(
        self, rank: int, processes: int, local_nodes: int, kernels: GradientKernels
    ) -> None:
        """Joins `processes` processes of `local_nodes` nodes each; this one has index `rank`.

        The kernels add codes and decode their sums.

        Raises:
          ValueError: there are no nodes, or more than 65536.
        """
        self._kernels = kernels
        self.at_new_owners: list[Callable[[], None]] = []
        self.local_nodes = local_nodes
        self.first_node = rank * local_nodes
        self.num_nodes = processes * local_nodes
        if not 1 <= self.num_nodes <= MAX_NODES:
            raise ValueError(f"{self.num_nodes} nodes; allowed are 1 to {MAX_NODES}.")
        self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_sent = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes_received = tf.Variable(0, dtype=tf.int64, trainable=False)
        # A variable, because graph optimizers turn a division by a constant into a product with
        # its reciprocal, which rounds differently.
        self._nodes = tf.Variable(self.num_nodes, dtype=tf.int32, trainable=False)

    @abc.abstractmethod
    def _join_max(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the elementwise largest of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        """Returns the processes' summed codes, uint32 [G, k]; a node's codes reach `max_code`."""

    def share(self, rows: int) -> tuple[int, int]:
        """Returns the first and the end of a bucket's groups of 32 values that this process owns.

        Where owners change, the range is all groups; the values of other owners are zeros.
        """
        return self.share_of_all(rows)

    def share_of_all(self, rows: int) -> tuple[int, int]:
        """Returns what `share` does while all processes take part; see `planes.share_of`."""
        return share_of(rows, self._processes_of_shares, self.first_node // self.local_nodes)

    def begin_view(self, owner: Owner) -> None:
        """Begins a view, in which this process is another owner of shares; between two steps."""
        self.owner = owner
        for act in self.at_new_owners:
            act()

    @property
    def _processes_of_shares(self) -> int:
        return self.num_nodes // self.local_nodes

    @abc.abstractmethod
    def _scatter_codes(self, local: tf.Tensor, name: str, max_code: int) -> tf.Tensor:
        """Returns this process' share of the sum of the processes' codes, uint32 [G, k]."""

    @abc.abstractmethod
    def _gather_codes(self, share: tf.Tensor, rows: int, name: str, max_code: int) -> tf.Tensor:
        """Returns the shares of all processes, codes up to `max_code`: uint32 [rows, k]."""

    @abc.abstractmethod
    def _join_floats(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum of the processes' float32 [n]."""

    @abc.abstractmethod
    def _join_halves(self, local: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the mean of the processes' float32 [n], which travel as float16 both ways."""

    def max(self, vectors: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Returns the elementwise largest of float32 vectors, one for each local node."""
        return self._join_max(tf.reduce_max(tf.stack(vectors), axis=0), name)

    def sum_codes(self, bucket: LocalBucket) -> Summed:
        """Returns the nodes' codes and their exact integer sum, or the means that it stands for.

        The words of the sum are uint32 [M / 32, planes.plane_count(num_nodes * max_code)].

        Raises:
          ValueError: a sum could exceed `layout.MAX_SUM`.
        """
        codes = bucket.encode()
        words = self._join_codes(self._add(codes, bucket.max_code), bucket.name, bucket.max_code)
        nodes = self.nodes(words)
        if bucket.decoded:
            means = self._kernels.decode(words, bucket.units, nodes, bucket.shapes, bucket.parts)
            return Summed(codes, means)
        return Summed(codes, Sums(bucket.variables, words, bucket.units, nodes, bucket.parts))

    def scatter_codes(self, bucket: LocalBucket) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the nodes' codes, and this process' share of their exact integer sum.

        The words of the share are uint32 [groups of `share`, planes of the sum].

        Raises:
          ValueError: a sum could exceed `layout.MAX_SUM`.
        """
        codes = bucket.encode()
        local = self._add(codes, bucket.max_code)
        return codes, self._scatter_codes(local, bucket.name, bucket.max_code)

    def gather_codes(
        self, share: tf.Tensor, elements: int, name: str, max_code: int = 1
    ) -> tf.Tensor:
        """Returns what all processes have coded, each its share of a bucket.

        Args:
          share: uint32 [groups of `share`, k], codes up to `max_code`.
          elements: M, those of the bucket.
          name: see above.
          max_code: largest magnitude of a code.

        Returns:
          Codes of the whole bucket, uint32 [M / 32, k].
        """
        return self._gather_codes(share, padded(elements) // GROUP, name, max_code)

    def float_sum(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Returns sums of float32 tensors, added in one binary tree over the global nodes.

        Args:
          values: tensors of each local node.
          name: see above.

        Returns:
          One sum for each tensor of a node.
        """
        local = [tree_sum(each) for each in zip(*values, strict=True)]
        return _like(self._join_floats(_flat(local), name), local)

    def mean(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        """Returns means of float32 or float16 tensors, computed in float32.

        float16 travels as float16 and is rounded again on each way.
        """
        if values[0][0].dtype != tf.float16:
            return self._mean_of_sums(values, name)
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        local = [tree_sum(each) / self.local_nodes for each in zip(*wide, strict=True)]
        means = self._join_halves(_flat(local), name)
        return [tf.cast(mean, tf.float16) for mean in _like(means, local)]

    def _mean_of_sums(self, values: Sequence[Sequence[tf.Tensor]], name: str) -> list[tf.Tensor]:
        if self.num_nodes == 1:
            return list(values[0])
        wide = [[tf.cast(value, tf.float32) for value in node] for node in values]
        totals = self.float_sum(wide, name)
        nodes = tf.cast(self.nodes(totals[0]), tf.float32)
        pairs = zip(totals, values[0], strict=True)
        return [tf.cast(total / nodes, value.dtype) for total, value in pairs]

    def _add(self, codes: Sequence[tf.Tensor], max_code: int) -> tf.Tensor:
        """Returns the sum of the local nodes' codes."""
        self.largest_sum(max_code)
        planes = plane_count(self.local_nodes * max_code)
        if self.local_nodes == 1 and codes[0].shape[1] == planes:
            return codes[0]
        return self._kernels.sum(codes, planes)

    def nodes(self, total: tf.Tensor) -> tf.Tensor:
        """Returns the number of nodes in `total`, a result of this exchange.

        Returns:
          int32 scalar that no graph optimizer can fold. It is `num_nodes`, or less if a step is
          made without some nodes.
        """
        del total
        return self._nodes.read_value()

    def awaited(self, gradients: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
        """Returns which of the local nodes' gradients an update waits for, beside its own mean."""
        del gradients
        return []

    def settled(self) -> contextlib.AbstractContextManager[None]:
        """Delays the operations made within it until the step's results are final.

        Enter it once in a step, after all exchanges of the step are under way.
        """
        return contextlib.nullcontext()

    def count_step(self) -> None:
        """Counts a step; call it within `settled`. Bytes a step are bytes over this count."""
        self.steps.assign_add(1)

    def took_part(self) -> tf.Tensor:
        """Returns whether this process' nodes are in the step's results: bool scalar.

        Call it within `settled`.
        """
        return tf.constant(True)

    def require_in_next_step(self) -> None:  # noqa: B027 (does nothing if all nodes are in every step)
        """Makes the next steps wait for this process' gradients, if steps are made without some."""

    @property
    def nodes_in_result(self) -> int:
        """Nodes for whose codes the sums that this process receives have planes."""
        return self.num_nodes

    def traffic(self, payload: Payload) -> Payload:
        """Returns the bytes that this process sends and receives for a codec's payload.

        Where the engine `packs_codes`, they are the most that it may need. If there is only one
        process, which sends nothing, these are the bytes of one node.
        """
        return payload

    def traffic_of_coded_sums(self, payload: Payload, coded: CodedPayload) -> Payload:
        """Returns the bytes of `traffic` where the owners of shares code the sums again.

        Args:
          payload: of codes, and of their exact sums.
          coded: of what the owners send.
        """
        return Payload(payload.sent + coded.scales, coded.codes + coded.scales)

    def largest_sum(self, max_code: int) -> int:
        """Returns the largest magnitude of a sum of codes over all nodes.

        Raises:
          ValueError: it exceeds `layout.MAX_SUM`.
        """
        largest = self.num_nodes * max_code
        if largest > MAX_SUM:
            raise ValueError(
                f"codes up to {max_code} of {self.num_nodes} nodes: their sums reach {largest}; "
                f"allowed is up to {MAX_SUM}."
            )
        return largest


def begin_span(name: str, kind: str) -> tf.profiler.experimental.Trace:
    """Begins a span of TensorBoard's profiler; the result's `__exit__`, in any thread, ends it.

    Args:
      name: of an operation. The fingerprint of a layout, with which those of gradients begin, is
        left out.
      kind: of operation, by which the profiler groups spans.
    """
    return tf.profiler.experimental.Trace(f"{_FINGERPRINT.sub('', name)}:{kind}")


def unordered(result: tf.Tensor | tf.Operation) -> tf.Tensor | tf.Operation:
    """Lets an operation, or that which yields a tensor, start as soon as its input is ready.

    tf.function would run such operations one after the other, in the order in which they were
    traced, so that none could run while another waits for its gradients.
    """
    if tf.executing_eagerly():  # perhaps within the trace of a function that it is no part of
        return result
    graph = tf.compat.v1.get_default_graph()
    dependencies = getattr(graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(getattr(result, "op", result))
    return result


def tree_sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds neighbours pairwise until one value is left, so that aligned blocks of nodes add alike.

    Grappler's arithmetic optimization must be off, because it flattens trees of additions.
    """
    items = list(values)
    while len(items) > 1:
        pairs = [items[i] + items[i + 1] for i in range(0, len(items) - 1, 2)]
        items = pairs + items[len(items) - len(items) % 2 :]
    return items[0]


def _flat(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _like(flat: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits a flat tensor into tensors with the shapes of `tensors`."""
    parts = tf.split(flat, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, t.shape) for part, t in zip(parts, tensors, strict=True)]
