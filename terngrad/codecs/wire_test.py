"""Laws of the wire format: golden bytes, and every message that does not fit is named."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad import planes
from terngrad.codecs import wire
from terngrad.codecs.ternary_codec import TernaryCodec
from terngrad.draws import DrawKey
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels

LAYOUT = make_layout(["a/kernel", "a/bias"], [(7, 9), (5,)], Policy(grad_bits=1))
STEP, NODES = 12, 1
GOLDEN_HEADER = "54475244010001020c000000000000000000000001000000440000000000000002000000"
GOLDEN_WORDS = "fad50204f2d5020400a034fe000000000f00000000000000"
GOLDEN_DIGEST = "abf54633a1c55e8c"


def golden_message(kernels=None):
    """Codes of fixed gradients under a fixed key; no value here may ever change."""
    codec = TernaryCodec(LAYOUT, 0, kernels or ReferenceKernels())
    kernel = np.linspace(-1, 1, 63, dtype=np.float32).reshape(7, 9)
    bias = np.array([0.5, -0.25, 0.0, 1.0, -1.0], np.float32)
    gradients = [tf.constant(g) for g in (bias, kernel)]
    measured = codec.measure(gradients)
    key = DrawKey(tf.constant(42, tf.uint64), tf.constant(STEP, tf.int64), tf.constant(3))
    words = codec.encode(gradients, measured.bounds, measured.scales, key)[0]
    return wire.Message(STEP, 0, NODES, measured.scales.numpy(), words.numpy())


def test_golden_bytes(kernels):
    data = wire.write(golden_message(kernels), LAYOUT)
    assert data[:36].hex() == GOLDEN_HEADER
    assert data[52:60].hex() == "0000803f0000803f"
    assert data[60:].hex() == GOLDEN_WORDS
    assert hashlib.sha256(data).hexdigest()[:16] == GOLDEN_DIGEST


def test_reading_gives_back_what_was_written():
    message = golden_message()
    got = wire.read(wire.write(message, LAYOUT), LAYOUT, STEP, 0, NODES)
    np.testing.assert_array_equal(got.scales, message.scales)
    np.testing.assert_array_equal(got.words, message.words)


def test_a_message_holds_two_bits_a_value_and_four_bytes_a_variable():
    data = wire.write(golden_message(), LAYOUT)
    assert len(data) == wire.HEADER_BYTES + 4 * 2 + 96 * 2 // 8


@pytest.mark.parametrize(
    ("offset", "value", "text"),
    [
        (0, b"X", "magic is .* allowed is b'TGRD'"),
        (4, b"\x02", "version is 2; allowed is 1"),
        (6, b"\x09", "codec is 9; allowed is 1"),
        (7, b"\x03", "planes is 3; allowed is 2"),
        (8, b"\x0d", "step is 13; allowed is 12"),
        (16, b"\x01", "bucket is 1; allowed is 0"),
        (20, b"\x02", "nodes is 2; allowed is 1"),
        (24, b"\xff", "elements is 255; allowed is 68"),
        (32, b"\x07", "scales is 7; allowed is 2"),
        (36, b"\xaa\xbb", "layout fingerprint is aabb"),
    ],
)
def test_law_10_a_field_that_does_not_fit_is_named(offset, value, text):
    data = bytearray(wire.write(golden_message(), LAYOUT))
    data[offset : offset + len(value)] = value
    with pytest.raises(wire.WireError, match=text):
        wire.read(bytes(data), LAYOUT, STEP, 0, NODES)


@pytest.mark.parametrize("length", [0, 51, 52, 83])
def test_law_10_a_truncated_message_is_refused(length):
    data = wire.write(golden_message(), LAYOUT)[:length]
    with pytest.raises(wire.WireError, match="bytes"):
        wire.read(data, LAYOUT, STEP, 0, NODES)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused(data):
    with pytest.raises(wire.WireError):
        wire.read(data, LAYOUT, STEP, 0, NODES)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 83), st.integers(1, 255)), max_size=6),
    st.sampled_from([1, 2, 3, 5]),
)
@settings(max_examples=300, deadline=None)
def test_law_10_a_changed_message_is_refused_or_holds_sums_in_range(changes, nodes):
    shape = (3, planes.plane_count(nodes))
    message = wire.Message(STEP, 0, nodes, np.ones(2, np.float32), np.zeros(shape, np.uint32))
    data = bytearray(wire.write(message, LAYOUT))
    for region, place, value in changes:
        data[min(52 + 8 + place if region else place, len(data) - 1)] ^= value
    try:
        got = wire.read(bytes(data), LAYOUT, STEP, 0, nodes)
    except wire.WireError:
        return
    assert np.all(got.scales >= 0)
    values = planes.unpack(tf.constant(got.words)).numpy()
    assert np.all(np.abs(values) <= nodes)
    assert not np.any(values[68:])


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        (0, np.float32(np.nan), "scales are .*nan"),
        (1, np.float32(-1), "scales are .*-1"),
        (3, np.uint32(2), "words are no sum over 1 nodes"),  # negative, but zero
        (6, np.uint32(1 << 4), "words are no sum over 1 nodes"),  # in the padding
    ],
)
def test_law_10_contents_that_cannot_be_are_refused(word, value, text):
    codes = np.zeros((3, 2), np.uint32)
    message = wire.Message(STEP, 0, NODES, np.ones(2, np.float32), codes)
    data = bytearray(wire.write(message, LAYOUT))
    data[52 + 4 * word : 56 + 4 * word] = value.tobytes()
    with pytest.raises(wire.WireError, match=text):
        wire.read(bytes(data), LAYOUT, STEP, 0, NODES)


@pytest.mark.parametrize(
    ("step", "bucket", "text"),
    [(-1, 0, "step is -1"), (1 << 64, 0, "step is"), (0, 1, "bucket is 1; allowed is 0 to 0")],
)
def test_writing_refuses_a_step_or_bucket_out_of_range(step, bucket, text):
    message = wire.Message(step, bucket, 1, np.ones(2), np.zeros((3, 2)))
    with pytest.raises(wire.WireError, match=text):
        wire.write(message, LAYOUT)


def test_writing_refuses_words_of_another_bucket():
    message = golden_message()
    wrong = wire.Message(STEP, 0, 2, message.scales, message.words)
    with pytest.raises(
        wire.WireError, match=r"shape of the words is \(3, 2\); allowed is \(3, 3\)"
    ):
        wire.write(wrong, LAYOUT)
