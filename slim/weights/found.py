"""What a file with weights holds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
    """The weights in a file.

    Attributes:
      layout: what kind of file it is, for messages.
      arrays: the weights by the suite's name of the variable, e.g. "vgg_16/fc8/kernel".
      left_out: the names, in the file, of all that is no weight of a net.
    """

    layout: str
    arrays: dict[str, np.ndarray]
    left_out: tuple[str, ...] = ()
