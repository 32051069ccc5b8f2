"""From a layout's policy to the codecs that carry it out."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec, Payload
from terngrad.codecs.float_codec import FloatCodec
from terngrad.codecs.ternary_codec import OwnScaleTernaryCodec, TernaryCodec, UnpackedTernaryCodec
from terngrad.exchange.exchange import Exchange
from terngrad.layout import Layout, Policy
from terngrad.ops.kernels import Kernels


def make_codecs(layout: Layout, kernels: Kernels) -> list[Codec]:
    """One codec a bucket, of coded or of float variables."""
    ternary = _ternary_codec(layout.policy)
    codecs: list[Codec] = [ternary(layout, i, kernels) for i in range(len(layout.buckets))]
    wire_type = tf.as_dtype(layout.policy.float_type)
    for i, variables in enumerate(layout.float_buckets):
        shapes = [layout.shapes[v] for v in variables]
        name = f"{layout.fingerprint().hex()}/float{i}"
        codecs.append(FloatCodec(variables, shapes, name, wire_type))
    return codecs


def _ternary_codec(policy: Policy) -> type[TernaryCodec]:
    if not policy.scaler_sharing:
        return OwnScaleTernaryCodec
    return TernaryCodec if policy.use_encoding else UnpackedTernaryCodec


def payloads(codecs: Sequence[Codec], exchange: Exchange) -> list[Payload]:
    """Bytes that a process exchanges in a step, by variable in the layout's order."""
    by_variable: dict[int, Payload] = {}
    for codec in codecs:
        by_variable |= exchange.payload(codec)
    return [by_variable[i] for i in sorted(by_variable)]
