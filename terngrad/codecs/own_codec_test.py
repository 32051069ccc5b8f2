"""Custom codecs: what they may override and must state, and which are refused."""

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import find_codec, make_codecs
from terngrad.codecs.feedback_codec import TernaryFeedbackCodec
from terngrad.codecs.float_codec import FloatCodec
from terngrad.codecs.ternary_codec import TernaryCodec
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.gradients import NAMES, SHAPES, assert_same_bits, gradients_of
from terngrad.training.reduction import exchange_gradients


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "fifth",
            "codec is 'fifth'; allowed are float, half, ternary, 5-level, .*, and MODULE:CLASS",
        ),
        ("no.such:Codec", "'no.such:Codec' cannot be imported: No module named 'no'"),
        ("terngrad.planes:Codec", "has no attribute 'Codec'"),
        (".planes:Codec", "'.planes:Codec' cannot be imported: the 'package' argument"),
        ("terngrad.planes:GROUP", "is not a complete subclass of Codec; allowed are"),
        ("json:JSONDecoder", "is not a complete subclass of Codec; allowed are"),
        ("terngrad.codecs.integer_codec:IntegerCodec", "is not a complete subclass of Codec"),
    ],
)
def test_law_10_an_unknown_codec_is_named(name, text):
    with pytest.raises(ValueError, match=text):
        find_codec(name)


class _OldPayload(TernaryCodec):
    def payload(self, nodes):
        return super().payload(nodes, None)


class _OldDeliver(TernaryCodec):
    def deliver(self, exchange, encoded, scales):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("old", "text"),
    [
        (_OldPayload, "payload must take self, nodes, local_nodes"),
        (_OldDeliver, "deliver must take self, exchange, nodes, devices, as_sums"),
    ],
)
def test_law_10_a_codec_whose_methods_take_other_arguments_is_named(old, text):
    with pytest.raises(ValueError, match=text):
        find_codec(f"{__name__}:{old.__name__}")


class Encoding(TernaryCodec):
    """Encodes in a way of its own: the opposite."""

    def encode(self, gradients, bounds, scales, key):
        """The codes of the negative gradients."""
        return super().encode([-gradient for gradient in gradients], bounds, scales, key)


class Decoding(TernaryCodec):
    """Decodes in a way of its own: the opposite."""

    def decode(self, words, scales, nodes):
        """The negative means."""
        return [-mean for mean in super().decode(words, scales, nodes)]


class Mixin:
    """Encodes; is no codec."""

    encode = Encoding.encode


class Mixed(Mixin, TernaryCodec):
    """Gets `encode` from another class than the encoder."""


class Stating(TernaryCodec):
    """Overrides `encode` and says that the kernel encodes as it does."""

    encoder, encode = "ternary", TernaryCodec.encode


class Keeping(TernaryCodec):
    """Has a memory of its own, and encodes as the codec of the suite."""

    def correct(self, gradients, memory):
        """Gradients and memory."""
        return [gradient + kept for gradient, kept in zip(gradients, memory, strict=True)]


class Fading(TernaryFeedbackCodec):
    """Corrects in a way of its own: with half the memory."""

    def correct(self, gradients, memory):
        """Gradients and half the memory."""
        return super().correct(gradients, [0.5 * kept for kept in memory])


@pytest.mark.parametrize(
    ("codec", "encoder", "sums_codes", "scales_parts"),
    [
        (TernaryCodec, "ternary", True, True),
        (Keeping, "ternary", True, True),
        (Stating, "ternary", True, False),
        (Encoding, None, True, False),
        (Mixed, None, True, False),
        (Decoding, "ternary", False, False),
        (_OldDeliver, "ternary", False, False),
        (FloatCodec, None, False, False),
        (TernaryFeedbackCodec, "ternary-feedback", True, True),
        (Fading, "ternary-feedback", True, True),
    ],
)
def test_a_codec_that_overrides_a_method_states_anew_what_it_does(
    codec, encoder, sums_codes, scales_parts
):
    found = (codec.encoder, codec.sums_codes, codec.scales_parts)
    assert found == (encoder, sums_codes, scales_parts)


@pytest.mark.parametrize("scale_by", ["channel", "block:128"])
def test_law_10_a_codec_with_scales_of_variables_is_refused_with_scales_of_parts(scale_by):
    name = f"{__name__}:Encoding"
    layout = make_layout(NAMES, SHAPES, Policy(codec=name, scale_by=scale_by))
    text = f"codec '{name}' goes with scale_by=variable only, not with {scale_by}: its class does"
    with pytest.raises(ValueError, match=text):
        make_codecs(layout, ReferenceKernels())


def test_an_overridden_correct_is_used(kernels):
    codec = Fading(make_layout(NAMES, SHAPES, Policy(codec="ternary-feedback")), 0, kernels)
    (gradients,) = gradients_of(1)
    own = [gradients[i] for i in codec.variables]
    corrected, measured = codec.correct_and_measure(own, own)
    assert_same_bits(corrected, [1.5 * gradient for gradient in own])
    assert_same_bits([measured.scales], [codec.measure(corrected).scales])


@pytest.mark.parametrize(("encoder", "max_code"), [("ternary", 2), ("quinary", 1)])
def test_law_10_an_encoder_of_other_codes_is_named(encoder, max_code):
    wrong = type("Wrong", (TernaryCodec,), {"encoder": encoder, "max_code": max_code})
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=1))
    text = f"Wrong.encoder is '{encoder}', max_code is {max_code}; allowed are 'ternary' with 1"
    with pytest.raises(ValueError, match=text):
        wrong(layout, 0, ReferenceKernels())


@pytest.mark.parametrize(
    ("made", "policy", "has_sums"),
    [
        (TernaryCodec, Policy(grad_bits=1), True),
        (Decoding, Policy(grad_bits=1), False),
        (None, Policy(codec="terngrad.codecs.examples:UnpackedTernaryCodec"), False),
        (None, Policy(codec="terngrad.codecs.examples:OwnScaleTernaryCodec"), False),
        (None, Policy(grad_bits=32), False),
    ],
)
def test_only_means_that_are_decoded_sums_are_handed_over_as_sums(made, policy, has_sums):
    layout = make_layout(NAMES, SHAPES, policy)
    codec = (
        made(layout, 0, ReferenceKernels()) if made else make_codecs(layout, ReferenceKernels())[0]
    )
    exchange, (gradients,) = LocalExchange(1, ReferenceKernels()), gradients_of(1)
    key = DrawKey(tf.constant(9, tf.uint64), tf.constant(3, tf.int64), tf.constant(0))
    run = lambda as_sums: exchange_gradients(
        [gradients], [codec], exchange, [key], ["/CPU:0"], as_sums=as_sums
    )
    found, decoded = run(True), run(False)
    assert bool(found.sums) == has_sums
    assert not decoded.sums
    if has_sums:
        (sums,) = found.sums
        means = codec.decode(sums.words, sums.units, sums.nodes)
        for i, mean in zip(sums.variables, means, strict=True):
            np.testing.assert_array_equal(mean, decoded.means[i])


def test_an_overridden_encode_or_decode_is_used(kernels):
    layout = make_layout(NAMES, SHAPES, Policy(grad_bits=1))
    exchange, gradients = LocalExchange(2, kernels), gradients_of(2)
    keys = [DrawKey(tf.constant(9, tf.uint64), tf.constant(3), tf.constant(n)) for n in range(2)]
    devices = ["/CPU:0"] * 2
    plain, encoding, decoding = (
        exchange_gradients(gradients, [made(layout, 0, kernels)], exchange, keys, devices).means
        for made in (TernaryCodec, Encoding, Decoding)
    )
    for mean, *others in zip(plain, encoding, decoding, strict=True):
        for other in others:
            np.testing.assert_array_equal(other, -mean)
