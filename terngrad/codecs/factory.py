"""The codecs that a layout's policy asks for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence

import tensorflow as tf

from terngrad.codecs.codec import Codec
from terngrad.codecs.float_codec import FloatCodec
from terngrad.codecs.integer_codec import IntegerCodec
from terngrad.codecs.registry import ALLOWED, CODECS
from terngrad.codecs.sum_codec import sum_codecs
from terngrad.exchange.exchange import Exchange, Payload
from terngrad.layout import EXACT, Layout
from terngrad.ops.gradient_kernels import GradientKernels

MakeCodec = Callable[
    [Layout, int, GradientKernels], Codec
]  # the int is the bucket's index in the layout


def find_codec(name: str, scale_by: str = "variable", sum_codec: str = EXACT) -> MakeCodec:
    """Returns the class of a codec: one of `CODECS`, or MODULE:CLASS, which is imported.

    Raises:
      ValueError: there is no codec of this name, a method of it takes other arguments, or it does
        not go with `scale_by` or `sum_codec`.
    """
    module, _, attribute = CODECS.get(name, name).partition(":")
    if not module or not attribute:
        raise ValueError(f"codec is {name!r}; {ALLOWED}.")
    try:
        made = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"codec {name!r} cannot be imported: {error}; {ALLOWED}.") from error
    if not (isinstance(made, type) and issubclass(made, Codec)) or inspect.isabstract(made):
        raise ValueError(f"codec {name!r} is not a complete subclass of Codec; {ALLOWED}.")
    for method in ("payload", "deliver"):
        wanted = [*inspect.signature(getattr(Codec, method)).parameters]
        try:
            inspect.signature(getattr(made, method)).bind(*wanted)
        except TypeError:
            raise ValueError(f"codec {name!r}: {method} must take {', '.join(wanted)}.") from None
    if scale_by != "variable" and not made.scales_parts:
        raise ValueError(
            f"codec {name!r} goes with scale_by=variable only, not with {scale_by}: its class does "
            "not state scales_parts = True."
        )
    if sum_codec != EXACT and not (issubclass(made, IntegerCodec) and made.sums_codes):
        raise ValueError(
            f"sum_codec is {sum_codec}; allowed is {EXACT} with the codec {name!r}: its means are "
            "no decoded sums of codes."
        )
    return made


def largest_code(codecs: Sequence[Codec]) -> int:
    """Returns the largest magnitude of a code over all codecs; 1 if there are no codes."""
    return max((codec.max_code for codec in codecs), default=0) or 1


def make_codecs(layout: Layout, kernels: GradientKernels) -> list[Codec]:
    """Returns one codec for each bucket of coded variables and each of float variables.

    Raises:
      ValueError: the policy names an unknown codec, or one that does not go with its `scale_by` or
        its `sum_codec`.
    """
    policy = layout.policy
    ways = policy.scale_by, policy.sum_codec if policy.is_coded else EXACT
    make = find_codec(policy.codec_name if policy.is_coded else "ternary", *ways)
    codecs: list[Codec] = [make(layout, i, kernels) for i in range(len(layout.buckets))]
    wire_type = tf.as_dtype(layout.policy.float_type)
    for i, variables in enumerate(layout.float_buckets):
        shapes = [layout.shapes[v] for v in variables]
        name = f"{layout.fingerprint().hex()}/float bucket {i}"
        codecs.append(FloatCodec(variables, shapes, name, wire_type))
    return codecs


def payloads(codecs: Sequence[Codec], exchange: Exchange) -> list[Payload]:
    """Returns the bytes that a process exchanges in a step, by variable in the layout's order.

    They are the most that it may need where the engine packs codes; see `Exchange.traffic`.
    """
    local_nodes = exchange.local_nodes if exchange.sums_local_nodes else None
    by_variable: dict[int, Payload] = {}
    for codec, back in zip(codecs, sum_codecs(codecs, exchange), strict=True):
        coded = back.payload() if back else {}
        nodes = exchange.num_nodes if back else exchange.nodes_in_result
        for i, payload in codec.payload(nodes, local_nodes).items():
            by_variable[i] = exchange.traffic(payload)
            if back:
                by_variable[i] = exchange.traffic_of_coded_sums(payload, coded[i])
    return [by_variable[i] for i in sorted(by_variable)]
