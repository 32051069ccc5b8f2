"""The part of a step that all nodes share: gradients are reduced, then updates may begin.

Programs (`terngrad.training.step`) and the library (`terngrad.Reducer`) make their steps with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.codecs.sum_codec import CodedSums, SumMemory, coded_exchanges, sum_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.connection import Connection
from terngrad.exchange.exchange import Exchange
from terngrad.exchange.local import LocalExchange
from terngrad.ops.gradient_kernels import GradientKernels, Sums
from terngrad.training.memory import Memories, Memory
from terngrad.training.nodes import draw_keys, exchange_nodes, spread
from terngrad.training.sequence_lock import SequenceLock


class Aggregate(NamedTuple):
    """The results of an exchange of gradients.

    Attributes:
      means: mean gradient of each variable; None if `sums` has it.
      sums: mean gradients that are not decoded, by bucket.
      scales: float32 [p], scale of each part of the coded variables; infinite if a gradient is not
        finite.
      encoded: the first local node's encoded buckets, by codec.
      kept: memories after a step that this process took part in, by codec and local node.
      unsent: memories after a step that the others made without this process.
      kept_sums: what this process keeps of the means that it owns, by codec; see
        codecs/sum_codec.py.
    """

    means: list[tf.Tensor | None]
    sums: list[Sums]
    scales: tf.Tensor
    encoded: list[list[tf.Tensor]]
    kept: Memories
    unsent: Memories
    kept_sums: Sequence[SumMemory] = ()


@dataclasses.dataclass(eq=False)
class Reduction:
    """Reduces the local nodes' gradients to an `Aggregate`, which the updates then apply.

    Attributes:
      codecs: together cover every variable once.
      exchange: connects this process' nodes with the others'.
      step: int64 scalar, number of steps made, which each step increments.
      seed: of all draws, 64 bits.
      devices: towers, which measure and encode: only codes leave them. Consecutive local nodes
        share one; then there is one for each node. "" = that of the gradients.
      memory: the codecs' memory of this process' nodes; None = a new one.
      sequence: notes when the updates of a step begin; None = no thread copies the state meanwhile.
      first_node: index of the first local node in draws and memory; None = that of the exchange.
      memory_decay: the share of the memory that counts in the next step.
    """

    codecs: Sequence[Codec]
    exchange: Exchange
    step: tf.Variable
    seed: int
    devices: Sequence[str] = ("",)
    memory: Memory | None = None
    sequence: SequenceLock | None = None
    first_node: int | None = None
    memory_decay: float = 1.0

    def __post_init__(self) -> None:
        nodes = self.exchange.local_nodes
        self.devices = spread(self.devices, nodes)
        if self.first_node is None:
            self.first_node = self.exchange.first_node
        self.sums = sum_codecs(self.codecs, self.exchange)
        if self.memory is None:
            towers = self.devices
            self.memory = Memory(self.codecs, self.first_node, nodes, towers, self.sums)
            self.memory.follow_owners(self.exchange, self.sums)

    def keys(self, step: tf.Tensor) -> list[DrawKey]:
        """Returns the keys of the local nodes' draws at a step."""
        return draw_keys(self.seed, step, self.first_node, self.exchange.local_nodes)

    def reduce(
        self,
        gradients: Sequence[Sequence[tf.Tensor]],
        keys: Sequence[DrawKey],
        *,
        as_sums: bool = False,
    ) -> Aggregate:
        """Exchanges the gradients of all variables, by local node; see `exchange_gradients`."""
        held, sums = ((), ())
        if self.memory.variables:
            held, sums = self.memory.read(), self.memory.read_sums()
        if self.memory_decay != 1.0:
            decay = lambda value: self.memory_decay * value
            held, sums = tf.nest.map_structure(decay, (held, sums))
        return exchange_gradients(
            gradients,
            self.codecs,
            self.exchange,
            keys,
            self.devices,
            held,
            as_sums=as_sums,
            coded_sums=coded_exchanges(self.sums, sums),
        )

    @contextlib.contextmanager
    def updates(
        self,
        aggregate: Aggregate,
        gradients: Sequence[Sequence[tf.Tensor]] = (),
        others: Sequence[tf.Tensor] = (),
    ) -> Iterator[None]:
        """Delays the operations made within it, updates, until the step's results are final.

        The memory after the step, and that it is made, belong to these updates.

        Args:
          aggregate: of this step.
          gradients: by local node, of a backward pass that may still need the weights; see
            `Exchange.awaited`.
          others: further results of the step.
        """
        # One operation stands for all, so that the graph has no edge for each pair of them.
        awaited = self.exchange.awaited(gradients)
        first = [tf.group(*awaited)] if awaited else []
        noted = self._noted(aggregate, others)
        with self.exchange.settled(), tf.control_dependencies(first), noted:
            yield
            self.remember(aggregate)
            self.step.assign_add(1)
            self.exchange.count_step()

    def _noted(
        self, aggregate: Aggregate, others: Sequence[tf.Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """Notes that updates begin, when all results are there: see `SequenceLock.updates`."""
        if not self.sequence:  # they begin as soon as the first results are there
            return contextlib.nullcontext()
        means = [mean for mean in aggregate.means if mean is not None]
        return self.sequence.updates([*means, *(sums.words for sums in aggregate.sums), *others])

    def remember(self, aggregate: Aggregate) -> None:
        """Assigns the memory; gradients that had no part in the step are kept whole."""
        if not self.memory.variables:
            return
        kept, took_part = aggregate.kept, self.exchange.took_part()
        if not tf.get_static_value(took_part):  # None: only the step itself knows
            choose = lambda kept, unsent: tf.where(took_part, kept, unsent)
            kept = tf.nest.map_structure(choose, kept, aggregate.unsent)
        self.memory.assign(kept)
        self.memory.assign_sums(aggregate.kept_sums)


def make_exchange(
    connection: Connection | None, nodes: int, kernels: GradientKernels, step: tf.Variable
) -> Exchange:
    """Returns the exchange of `nodes` local nodes; without a connection they are all nodes."""
    if connection is None:
        return LocalExchange(nodes, kernels)
    return connection.exchange(nodes, kernels, step)


def exchange_gradients(
    gradients: Sequence[Sequence[tf.Tensor]],
    codecs: Sequence[Codec],
    exchange: Exchange,
    keys: Sequence[DrawKey],
    devices: Sequence[str],
    memories: Memories = (),
    *,
    as_sums: bool = False,
    coded_sums: Sequence[CodedSums | None] = (),
) -> Aggregate:
    """Clips, scales, encodes, exchanges and decodes.

    Args:
      gradients: gradients of all variables, by local node.
      codecs: see `Reduction`.
      exchange: connects the nodes.
      keys: key of each local node's draws.
      devices: device of each local node; see `Reduction`.
      memories: memories before the step, by codec and local node; empty = before the first step.
      as_sums: whether means need not be decoded, if they are sums of codes.
      coded_sums: code the sums of each codec again; () = sums stay exact.
    """
    means: dict[int, tf.Tensor | None] = {}
    sums: list[Sums] = []
    scales, encoded, kept, unsent, kept_sums = [], [], [], [], []
    memories = memories or [[codec.init() for _ in keys] for codec in codecs]
    coded_sums = coded_sums or [None] * len(codecs)
    for codec, memory, recoding in zip(codecs, memories, coded_sums, strict=True):
        node, delivered = exchange_nodes(
            gradients, codec, exchange, keys, devices, memory, as_sums=as_sums, coded_sums=recoding
        )
        if isinstance(delivered, Sums):
            sums.append(delivered)
            delivered = [None] * len(codec.variables)
        means.update(zip(codec.variables, delivered, strict=True))
        scales.append(tf.reduce_max(tf.stack(node.scales), axis=0))
        encoded.append(node.codes[0])
        kept.append(node.kept)
        unsent.append(node.unsent)
        kept_sums.append(recoding.kept if recoding else [])
    ordered = [means[i] for i in sorted(means)]
    return Aggregate(ordered, sums, tf.concat(scales, 0), encoded, kept, unsent, kept_sums)
