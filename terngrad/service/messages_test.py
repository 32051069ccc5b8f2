"""Frames are protobuf's, without copies of the payload; what is no frame is named."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from terngrad.service.messages import Frame, FrameError, Header, join_frame, split_frame

HEADER = Header(step=1 << 40, operation=300, piece=7)
PAYLOADS = [b"", b"a", bytes(127), bytes(range(256)) * 300]


@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_frames_are_what_protobuf_reads_and_writes(payload):
    data = join_frame(HEADER, payload)
    read = Frame.FromString(data)
    assert (read.header, read.payload) == (HEADER, payload)
    for frame in (data, Frame(header=HEADER, payload=payload).SerializeToString()):
        header, found = split_frame(frame)
        assert (header, bytes(found)) == (HEADER, payload)


def test_the_golden_bytes_of_version_1():
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
        (b"\x0a\x7f\x08", "a frame of 3 bytes with a header of 127"),
        (b"\x0a\xff\xff\x7f" + bytes(9), "with a header of 2097151"),
        (b"\x0a\x01\xff", "header that cannot be read"),
        (b"\x0a\x00\x22\x00", "a frame without a payload"),
        (b"\x0a\x00\x1a\x05abc", "a payload of 5 bytes where 3 are left"),
        (b"\x0a\x00\x1a\x02abc", "a payload of 2 bytes where 3 are left"),
        (b"\x0a\x00\x12\x04abcd\x1a\x00", "4 bytes of padding"),
        (b"\x0a\x00\x12\x03abc", "a frame without a payload"),
        (b"\x0a\x00\x12\x03a", "a frame without a payload"),
        (b"\x0a\x00\x12", "ends within a number"),
    ],
)
def test_law_10_what_is_no_frame_is_named(data, text):
    with pytest.raises(FrameError, match=text):
        split_frame(data)


def test_every_cut_of_a_frame_is_no_frame_or_no_payload():
    data = join_frame(HEADER, b"payload")
    whole_header = len(Frame(header=HEADER).SerializeToString())
    for end in set(range(len(data))) - {whole_header}:
        with pytest.raises((FrameError, DecodeError)):
            split_frame(data[:end])
