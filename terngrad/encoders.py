"""The ways in which values become codes that have a native kernel, and their definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad import ternary


class Encoder(NamedTuple):
    """Defines the codes that a kernel of `kEncodersOf` (cc/lib/kernels_impl.h) writes.

    Attributes:
      max_code: largest magnitude of a code.
      encode: returns the planes of codes, each bool [n], given values float32 [n], the magnitude to
        clip to, the scale, and draws (see draws.py).
    """

    max_code: int
    encode: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], Sequence[tf.Tensor]]


ENCODERS: Mapping[str, Encoder] = {"ternary": Encoder(1, ternary.ternarize)}
