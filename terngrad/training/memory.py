"""What codecs with a memory keep of each node's gradients, between the steps of a training.

The memory is a part of the state of the node's process alone: no other process gets it, and a
checkpoint of it stands beside those of the training (see `save`). It belongs to a step. A process
that is given the state of another step starts from a memory of zeros.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.codecs.codec import Memory as NodeMemory
from terngrad.training import checkpoints

Memories = Sequence[Sequence[NodeMemory]]  # by codec, then by local node


def no_memories(codecs: Sequence[Codec], nodes: int) -> list[list[NodeMemory]]:
    """Memories before the first step."""
    return [[codec.init() for _ in range(nodes)] for codec in codecs]


class Memory:
    """Variables that hold the memories of a process' nodes; none where no codec has a memory.

    Attributes:
      variables: by name, "memory/NODE/VARIABLE" with the global index of the node and the index of
        the variable in the layout.
    """

    def __init__(self, codecs: Sequence[Codec], first_node: int, nodes: int) -> None:
        """Zeros for `nodes` consecutive nodes."""
        self.variables: dict[str, tf.Variable] = {}
        self._held: list[list[list[tf.Variable]]] = []
        for codec, memories in zip(codecs, no_memories(codecs, nodes), strict=True):
            held = [[tf.Variable(value, trainable=False) for value in node] for node in memories]
            self._held.append(held)
            for i, node in enumerate(held):
                names = [f"memory/{first_node + i}/{v}" for v in codec.variables[: len(node)]]
                self.variables |= dict(zip(names, node, strict=True))

    def read(self) -> list[list[NodeMemory]]:
        """The memories before a step."""
        return [[[v.read_value() for v in node] for node in nodes] for nodes in self._held]

    def assign(self, memories: Memories) -> None:
        """Takes the memories after a step."""
        for held, given in zip(self._held, memories, strict=True):
            for variables, values in zip(held, given, strict=True):
                for variable, value in zip(variables, values, strict=True):
                    variable.assign(value)

    def clear(self) -> None:
        """Sets all to zero."""
        for variable in self.variables.values():
            variable.assign(tf.zeros_like(variable))

    def save(self, directory: str, step: int, keep: int) -> None:
        """Writes a checkpoint of the memory, if there is any; for arguments and errors see there.

        To be called before the training's own checkpoint of the step is written. One more is kept
        than of the training: whoever is killed between the two still finds the memory that belongs
        to the training's newest checkpoint.
        """
        if self.variables and step:
            os.makedirs(directory, exist_ok=True)
            checkpoints.save(directory, self.variables, step, keep + 1 if keep else 0)

    def restore(self, directory: str, step: int) -> str:
        """Reads the memory of a step, or clears it if there is none; returns why it is cleared."""
        self.clear()
        if not self.variables or step == 0:
            return ""
        path = checkpoints.at_step(directory, step)
        if path is None:
            return f"{directory} has none of step {step}"
        try:
            checkpoints.restore(path, self.variables)
        except ValueError as error:
            self.clear()
            return str(error)
        return ""
