"""Frames are valid protobuf messages, read without copies; errors name the invalid part."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from terngrad.connect.channel import FrameError
from terngrad.service.messages import (
    LONGEST_NAME,
    LONGEST_RESULT,
    MESSAGES,
    Field,
    Header,
    Order,
    join_frame,
    longest_value,
    make_classes,
    split_frame,
)

FRAME = {"header": Field(1, "Header"), "padding": Field(2, "bytes"), "payload": Field(3, "bytes")}
CLASSES = make_classes({**MESSAGES, "Frame": FRAME})
Frame = CLASSES["Frame"]

HEADER = Header(step=1 << 40, operation=300, piece=7)
PAYLOADS = [b"", b"a", bytes(127), bytes(range(256)) * 300]


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_protobuf_reads_and_writes_the_same_frames(payload):
    data = join_frame(HEADER, payload)
    read = Frame.FromString(data)
    assert (read.header.SerializeToString(), read.payload) == (HEADER.SerializeToString(), payload)
    for frame in (data, Frame(header=read.header, payload=payload).SerializeToString()):
        header, found = split_frame(frame)
        assert (header, bytes(found)) == (HEADER, payload)


def test_golden_bytes_of_a_frame():
    frame = join_frame(Header(step=3, operation=1, piece=2), b"xy")
    assert frame.hex(" ") == "0a 06 08 03 10 01 18 02 12 00 1a 02 78 79"


@pytest.mark.parametrize("name_size", range(5))
@pytest.mark.parametrize("payload_size", [4, 200, 1 << 15])
def test_payloads_are_not_copied_and_their_numbers_aligned(name_size, payload_size):
    data = join_frame(Header(failed="x" * name_size), bytes(payload_size))
    payload = split_frame(data)[1]
    assert payload.obj is data
    assert np.frombuffer(payload, "<u4").flags.aligned


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "does not begin with its header"),
        (b"GET / HTTP/1.1\r\n", "does not begin with its header"),
        (b"\x0a", "ends within a number"),
        (b"\x0a\xff\xff\xff\xff\xff", "ends within a number"),
        (b"\x0a\x7f\x08", "a frame of 3 bytes has a header of 127; allowed are 1"),
        (b"\x0a\xff\xff\x7f" + bytes(9), "has a header of 2097151; allowed are 9"),
        (b"\x0a\x01\xff", "a header that is not a valid Header"),
        (b"\x0a\x00\x22\x00", "no payload after its header"),
        (b"\x0a\x00\x1a\x05abc", "a payload has 5 bytes; the frame has 3 left"),
        (b"\x0a\x00\x1a\x02abc", "a payload has 2 bytes; the frame has 3 left"),
        (b"\x0a\x00\x12\x04abcd\x1a\x00", "4 bytes of padding; allowed are 0 to 3"),
        (b"\x0a\x00\x12\x03abc", "no payload after its header"),
        (b"\x0a\x00\x12\x03a", "no payload after its header"),
        (b"\x0a\x00\x12", "ends within a number"),
    ],
)
def test_law_10_invalid_frames_are_refused_with_the_reason(data, text):
    with pytest.raises(FrameError, match=text):
        split_frame(data)


def test_a_truncated_frame_is_invalid_or_has_no_payload():
    data = join_frame(HEADER, b"payload")
    whole_header = len(join_frame(HEADER)) - len(join_frame(Header())) + 2
    for end in set(range(len(data))) - {whole_header}:
        with pytest.raises((FrameError, DecodeError)):
            split_frame(data[:end])


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_law_10_protobuf_reads_each_accepted_frame_alike(data):
    try:
        header, payload = split_frame(b"\x0a" + data)
    except FrameError:
        return
    read = Frame.FromString(b"\x0a" + data)
    assert read.header.SerializeToString() == header.SerializeToString()
    assert read.payload == bytes(payload)


@pytest.mark.parametrize("workers", [1, 143, 144, 145, 1000, 2600])
def test_one_message_has_the_longest_values_of_all_workers(workers):
    order, size = Order(), longest_value(workers)
    order.values.name, order.values.round = "\U0001f600" * LONGEST_NAME, (1 << 64) - 1
    order.values.workers.extend(range(workers))
    order.values.contents.extend([bytes(size)] * workers)
    assert size == 1 << 16 or workers >= 144
    assert order.ByteSize() <= LONGEST_RESULT < order.ByteSize() + 32 * workers or size == 1 << 16
