"""Which values of a variable share a scale: all of them, a channel's, or a block's."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

ALLOWED = "variable, channel, or block:N with N a multiple of 128"
_GROUP = 128  # values whose draws are made at once
# A float32 scale for fewer values takes more bytes than their ternary codes.
_LEAST_VALUES = 16


class Parts(NamedTuple):
    """The parts of a variable: value e belongs to part ((first + e) // block) % count.

    A tuple of numbers, because functions of TensorFlow return no other objects.

    Attributes:
      block: number of neighbours in a part.
      count: number of parts.
      first: 0 for a whole variable; for a range of its values the place of the first of them.
    """

    block: int = 1
    count: int = 1
    first: int = 0

    def sizes(self, size: int) -> list[int]:
        """Returns the number of values in each part of a whole variable of this size."""
        cycle = self.block * self.count
        whole, rest = size // cycle * self.block, size % cycle
        left = (min(max(rest - i * self.block, 0), self.block) for i in range(self.count))
        return [whole + each for each in left]


def is_known(scale_by: str) -> bool:
    """Returns whether `parts_of` knows what values share a scale by."""
    return scale_by in ("variable", "channel") or _block_of(scale_by) > 0


def parts_of(shape: Sequence[int], scale_by: str) -> Parts:
    """Returns the parts of a variable of this shape.

    Args:
      shape: its shape.
      scale_by: "variable", one part; "channel", a part for each index of the last axis, which
        counts the outputs of a kernel in TensorFlow's layouts; "block:N", a part for each N
        neighbours in memory. A variable whose parts would have fewer than 16 values has only one,
        such as a bias, or a depthwise kernel, whose last axis is not the channels.
    """
    size = math.prod(shape)
    if scale_by == "channel":
        block, count = 1, shape[-1] if shape else 1
    else:
        block = _block_of(scale_by) or size
        count = -(-size // max(block, 1))
    is_divided = count > 1 and size >= _LEAST_VALUES * count
    return Parts(block, count) if is_divided else Parts()


def _block_of(scale_by: str) -> int:
    """Returns N of "block:N"; 0 for any other text."""
    found = re.fullmatch(r"block:([1-9][0-9]{0,17})", scale_by)
    return int(found[1]) if found and int(found[1]) % _GROUP == 0 else 0
