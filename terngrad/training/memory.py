"""The memory of codecs: the part of each node's gradients that is kept between steps.

With local steps the slots of the inner optimizers belong to it, too, with fragments the nodes'
weights, and with coded sums what the owner of a share keeps of its means (codecs/sum_codec.py).
Only the node's own process has the memory. Its checkpoints are beside those of the training (see
`save`). A memory belongs to a step: a process that receives the state of another step starts with a
memory of zeros.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec, NodeMemory
from terngrad.codecs.sum_codec import KEPT_SUMS, SumCodec, SumMemory
from terngrad.exchange.exchange import Exchange
from terngrad.training import checkpoints

Memories = Sequence[Sequence[NodeMemory]]  # by codec, then by local node
_OWNER = "owner_of_sums"
_NO_BUCKETS = zlib.crc32(b"[]")  # earlier versions of the programs saved this for all buckets


class Memory:
    """Variables with the memories of a process' nodes; empty if no codec has a memory.

    Attributes:
      variables: by name, "memory/NODE/VARIABLE", with the global index of the node and the index of
        the variable in the layout; "kept_sums/VARIABLE/FIRST", with the first value of an owner's
        piece; "owner_of_sums" after `follow_owners`; and those of `add`.
    """

    def __init__(
        self,
        codecs: Sequence[Codec],
        first_node: int,
        nodes: int,
        devices: Sequence[str] = (),
        sums: Sequence[SumCodec | None] = (),
    ) -> None:
        """Starts with zeros.

        Args:
          codecs: of the nodes.
          first_node: global index of the first one.
          nodes: how many, which are consecutive.
          devices: of each node; () = anywhere.
          sums: what codes the sums of each codec again; () = nothing.
        """
        self.variables: dict[str, tf.Variable] = {}
        self._held: list[list[list[tf.Variable]]] = []
        self._starts: dict[str, float | tf.Variable] = {}  # initial values of added variables
        self._exchange: Exchange | None = None  # of owners that change
        self._buckets = _NO_BUCKETS
        for codec in codecs:
            held = [_variables(codec.init, device) for device in devices or [""] * nodes]
            self._held.append(held)
            for i, node in enumerate(held):
                if len(node) not in (0, len(codec.variables)):
                    raise ValueError(
                        f"{type(codec).__name__}.init gives {len(node)} tensors; allowed are "
                        f"{len(codec.variables)}, one for each variable, or none."
                    )
                names = [f"memory/{first_node + i}/{v}" for v in codec.variables]
                self.variables |= dict(zip(names, node, strict=False))

        self._sums: list[list[tf.Variable]] = []
        for each in sums:
            self._sums.append(_variables(each.init, "/CPU:0") if each else [])
            self.variables |= dict(zip(each.names if each else [], self._sums[-1], strict=True))

    def add(
        self, variables: Mapping[str, tf.Variable], starts: float | Sequence[tf.Variable] = 0.0
    ) -> None:
        """Saves, restores and clears other variables of this process' nodes, too.

        Args:
          variables: by name.
          starts: their initial values; a variable stands for its value when the memory is cleared.
        """
        self.variables |= variables
        each = [starts] * len(variables) if isinstance(starts, float) else starts
        self._starts |= dict(zip(variables, each, strict=True))

    def read(self) -> list[list[NodeMemory]]:
        """Returns the memories before a step."""
        return [[[v.read_value() for v in node] for node in nodes] for nodes in self._held]

    def assign(self, memories: Memories) -> None:
        """Stores the memories after a step."""
        for held, given in zip(self._held, memories, strict=True):
            for variables, values in zip(held, given, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)

    def read_sums(self) -> list[SumMemory]:
        """Returns what an owner has kept of its means, by codec."""
        return [[v.read_value() for v in each] for each in self._sums]

    def assign_sums(self, memories: Sequence[SumMemory]) -> None:
        """Stores what an owner keeps after a step."""
        for held, given in zip(self._sums, memories, strict=bool(self._sums)):
            for variable, value in zip(held, given, strict=True):
                variable.assign(value)

    def follow_owners(self, exchange: Exchange, sums: Sequence[SumCodec | None]) -> None:
        """Where the owners of shares may change, starts what they keep of their means anew then.

        Args:
          exchange: knows the owners.
          sums: what codes all sums again whose memory is here, also that of `add`.
        """
        if exchange.owner is not None and any(
            name.startswith(KEPT_SUMS) for name in self.variables
        ):
            self._exchange = exchange
            # Names and shapes of the variables alone do not say how shares are cut.
            self._buckets = zlib.crc32(repr([each.names for each in sums if each]).encode())
            owner = tf.Variable(self._owner(exchange), dtype=tf.int64, trainable=False)
            self.variables[_OWNER] = owner
            exchange.at_new_owners.append(self.begin_sums)

    def begin_sums(self) -> None:
        """Starts what an owner keeps of its means from zero, if owners may change."""
        if not self._exchange:
            return
        for name, variable in self.variables.items():
            if name.startswith(KEPT_SUMS):
                variable.assign(tf.zeros_like(variable))
        self.variables[_OWNER].assign(self._owner(self._exchange))

    def clear(self) -> None:
        """Sets all memories to zero, and added variables to their start."""
        for name, variable in self.variables.items():
            start = self._starts.get(name, 0.0)
            whole = tf.fill(variable.shape, start) if isinstance(start, float) else start
            variable.assign(tf.cast(whole, variable.dtype))
        self.begin_sums()

    def save(
        self, directory: str, step: int, keep: int, values: checkpoints.State | None = None
    ) -> None:
        """Writes a checkpoint of the memory, if there is any; see `checkpoints.save`.

        Call this before writing the training's own checkpoint of the step: a process that is killed
        between the two calls still has the memory that belongs to the training's newest checkpoint.

        Args:
          directory: of the checkpoints.
          step: their step.
          keep: number of earlier checkpoints that stay beside it; 0 keeps all.
          values: what to write, by name; None = the variables' values.
        """
        if self.variables and step:
            os.makedirs(directory, exist_ok=True)
            saved = {name: (values or self.variables)[name] for name in self.variables}
            checkpoints.save(directory, saved, step, keep + 1 if keep else 0)

    def restore(self, directory: str, step: int) -> str:
        """Loads the memory of a step, or clears it; returns why it was cleared, or "".

        A process that has no memory now says so, too, if it had one at that step.
        """
        self.clear()
        if step == 0:
            return ""
        path = checkpoints.at_step(directory, step)
        if path is None:
            return f"{directory} has no checkpoint of step {step}" if self.variables else ""
        try:
            checkpoints.restore(path, self.variables)
        except ValueError as error:
            self.clear()
            return str(error)
        return self._check_owner(path) if self._exchange else ""

    def _check_owner(self, path: str) -> str:
        """Clears the memory of another owner or of other buckets; returns why, or ""."""
        owner = self.variables[_OWNER]
        was, now = owner.numpy().tolist(), [*self._owner(self._exchange)]
        if was in (now, [*now[:-1], _NO_BUCKETS]):
            owner.assign(now)
            return ""
        self.clear()
        if was[:-1] == now[:-1]:
            return f"{path} is of means in other buckets"
        had, has = (
            f"owner {index + 1} of {count} ({shares} shares)"
            for index, count, shares, _ in (was, now)
        )
        return f"{path} is of {had} of the means, this one is {has}"

    def _owner(self, exchange: Exchange) -> tuple[int, ...]:
        """Returns numbers that say which values the kept sums are of: owner and buckets."""
        return (*exchange.owner, self._buckets)


def _variables(init: Callable[[], NodeMemory], device: str) -> list[tf.Variable]:
    with tf.device(device):
        return [tf.Variable(value, trainable=False) for value in init()]
