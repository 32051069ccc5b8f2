"""The messages of `declarations`, and frames, whose payloads are not copied when read.

docs/wire-format.md describes the bytes.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from terngrad.connect.channel import FrameError
from terngrad.service.declarations import make_classes

_HEADER_TAG, _PADDING_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"  # fields 1 to 3, bytes
_ALIGNMENT = 4  # bytes of the largest numbers in payloads
_LONGEST_HEADER = 1 << 14  # bytes; the contributors alone can take half of it

PIECE_BYTES = 1 << 20  # of a push: smaller ones cost more time a byte, larger ones delay results
LONGEST_PUSH = PIECE_BYTES + (1 << 14)  # bytes of a message to a ps
# A result has more planes than a push: up to 18 instead of 2.
LONGEST_RESULT = 9 * PIECE_BYTES + (1 << 14)  # bytes of a message from a ps

_classes = make_classes()
Header = _classes["Header"]
Report = _classes["Report"]
Order = _classes["Order"]
StateReport = _classes["StateReport"]
View = _classes["View"]
ValueMessage = _classes["Value"]
Values = _classes["Values"]
OperationMessage = _classes["Operation"]
Call = _classes["Call"]
Reply = _classes["Reply"]


def join_frame(header: Any, payload: bytes | memoryview = b"") -> bytes:
    """Returns the bytes of a frame; copies the payload once.

    Args:
      header: a `Header`, `Call` or `Reply`.
      payload: numbers, little-endian.
    """
    head = header.SerializeToString()
    size = len(payload) if isinstance(payload, bytes) else payload.nbytes
    before = b"".join((_HEADER_TAG, _varint(len(head)), head))
    tag = _PAYLOAD_TAG + _varint(size)
    return b"".join((before, _padding(len(before) + len(tag)), tag, payload))


def split_frame(data: bytes | memoryview, kind: Any = Header) -> tuple[Any, memoryview]:
    """Returns the header and the payload of a frame; the payload shares memory with `data`.

    The payload's numbers are aligned if the sender padded the frame, as `join_frame` does.

    Args:
      data: the bytes of the frame.
      kind: class of the header.

    Raises:
      FrameError: `data` is not a frame; the message names the invalid part.
    """
    view = memoryview(data)
    if data[:1] != _HEADER_TAG:
        raise FrameError("a frame does not begin with its header")
    size, start = _read_varint(data, 1)
    if size > (allowed := min(_LONGEST_HEADER, len(data) - start)):
        raise FrameError(
            f"a frame of {len(data)} bytes has a header of {size}; allowed are {allowed}"
        )
    try:
        header = kind.FromString(view[start : start + size])
    except DecodeError:
        raise FrameError(
            f"a frame has a header that is not a valid {kind.DESCRIPTOR.name}"
        ) from None
    end = start + size
    if end == len(data):  # other implementations omit empty fields
        return header, view[end:]
    if data[end : end + 1] == _PADDING_TAG:
        size, start = _read_varint(data, end + 1)
        end = start + size
        if size >= _ALIGNMENT:
            raise FrameError(
                f"a frame has {size} bytes of padding; allowed are 0 to {_ALIGNMENT - 1}"
            )
    if data[end : end + 1] != _PAYLOAD_TAG:
        raise FrameError("a frame has no payload after its header")
    size, start = _read_varint(data, end + 1)
    if start + size != len(data):
        raise FrameError(f"a payload has {size} bytes; the frame has {len(data) - start} left")
    return header, view[start:]


def _padding(size: int) -> bytes:
    """Returns a field that aligns the bytes after the first `size`; b"" if none is needed."""
    missing = -size % _ALIGNMENT
    if not missing:
        return b""
    filled = (missing - 2) % _ALIGNMENT  # tag and length take two bytes
    return _PADDING_TAG + _varint(filled) + bytes(filled)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes | memoryview, start: int) -> tuple[int, int]:
    """Returns the number that begins at `start`, and the index after its end."""
    value = 0
    for i, octet in enumerate(data[start : start + 5]):
        value |= (octet & 0x7F) << 7 * i
        if octet < 0x80:
            return value, start + i + 1
    raise FrameError("a frame ends within a number")
