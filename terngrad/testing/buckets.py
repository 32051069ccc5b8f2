"""Codes as an exchange adds them."""

from collections.abc import Sequence

import tensorflow as tf

from terngrad.exchange.exchange import LocalBucket


def bucket_of(codes: Sequence[tf.Tensor], name: str, max_code: int) -> LocalBucket:
    """Returns a bucket of one variable whose sum is wanted, given each local node's codes."""
    shapes, units = [(32 * codes[0].shape[0],)], tf.ones([1])
    return LocalBucket(name, max_code, lambda: list(codes), (0,), shapes, units, decoded=False)
