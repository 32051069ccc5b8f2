"""The ways in which values become codes that have a native kernel, and their definition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from terngrad import ternary
from terngrad.layout import FEEDBACK_CODES, MAX_CODES


class Encoder(NamedTuple):
    """Defines the codes that a kernel of `kEncodersOf` (cc/lib/encode_impl.h) writes.

    Attributes:
      max_code: largest magnitude of a code.
      encode: returns codes, float32 [n], given values float32 [n], the magnitude to clip to, the
        scale, and draws (see draws.py).
    """

    max_code: int
    encode: Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


ENCODERS: Mapping[str, Encoder] = {
    name: Encoder(max_code, functools.partial(codes, max_code=max_code))
    for codes, names in ((ternary.draw_codes, MAX_CODES), (ternary.nearest_codes, FEEDBACK_CODES))
    for name, max_code in names.items()
}
