"""The messages of service.proto, and frames whose payload is not copied.

The classes are made from service.proto when this is imported: there is no generated code whose
version could be for another protobuf than the one installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PROTO = "service.proto"
_HEADER_TAG, _PADDING_TAG, _PAYLOAD_TAG = b"\x0a", b"\x12", b"\x1a"  # of Frame's fields
_ALIGNMENT = 4  # bytes of the largest numbers in payloads
_LONGEST_HEADER = 1 << 14  # bytes; the contributors alone may take half of it

VERSION = 1
SERVICE = "terngrad.ParameterServer"
HELLO_KEY = "terngrad-hello-bin"


class FrameError(ValueError):
    """Bytes that are no frame."""


def _load() -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="terngrad-") as folder:
        compiled = os.path.join(folder, "service.pb")
        # In a process of its own: the compiler crashes in one that has loaded TensorFlow.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{_FOLDER}", _PROTO]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={compiled}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise ValueError(
                f"{os.path.join(_FOLDER, _PROTO)} cannot be compiled: {''.join(last)}; parameter "
                "servers need grpcio-tools: pip install grpcio-tools"
            )
        with open(compiled, "rb") as file:
            found = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClassesForFiles([_PROTO], pool)


_classes = _load()
Hello = _classes["terngrad.Hello"]
Header = _classes["terngrad.Header"]
Frame = _classes["terngrad.Frame"]
Report = _classes["terngrad.Report"]
Order = _classes["terngrad.Order"]
Standing = _classes["terngrad.Standing"]
View = _classes["terngrad.View"]
ValueMessage = _classes["terngrad.Value"]
Values = _classes["terngrad.Values"]
OperationMessage = _classes["terngrad.Operation"]
Call = _classes["terngrad.Call"]
Reply = _classes["terngrad.Reply"]


def join_frame(header: Any, payload: bytes | memoryview = b"") -> bytes:
    """A `Frame`, or what is built like one, in bytes; copies the payload once."""
    head = header.SerializeToString()
    size = len(payload) if isinstance(payload, bytes) else payload.nbytes
    before = b"".join((_HEADER_TAG, _varint(len(head)), head))
    tag = _PAYLOAD_TAG + _varint(size)
    return b"".join((before, _padding(len(before) + len(tag)), tag, payload))


def split_frame(data: bytes, kind: Any = Header) -> tuple[Any, memoryview]:
    """Header, of a kind, and payload of a frame in bytes; the payload shares memory with `data`.

    Numbers in it are aligned as `join_frame` does, which another sender may not do.

    Raises:
      FrameError: says what does not belong into a frame.
    """
    view = memoryview(data)
    if data[:1] != _HEADER_TAG:
        raise FrameError("a frame does not begin with its header")
    size, start = _read_varint(data, 1)
    if size > min(_LONGEST_HEADER, len(data) - start):
        raise FrameError(f"a frame of {len(data)} bytes with a header of {size}")
    try:
        header = kind.FromString(view[start : start + size])
    except DecodeError:
        raise FrameError("a frame with a header that cannot be read") from None
    end = start + size
    if end == len(data):  # as other implementations leave out what is empty
        return header, view[end:]
    if data[end : end + 1] == _PADDING_TAG:
        size, start = _read_varint(data, end + 1)
        end = start + size
        if size >= _ALIGNMENT:
            raise FrameError(f"a frame with {size} bytes of padding")
    if data[end : end + 1] != _PAYLOAD_TAG:
        raise FrameError("a frame without a payload after its header")
    size, start = _read_varint(data, end + 1)
    if start + size != len(data):
        raise FrameError(f"a payload of {size} bytes where {len(data) - start} are left")
    return header, view[start:]


def _padding(size: int) -> bytes:
    """A field that brings so many bytes to a multiple of the alignment; none if they are one."""
    missing = -size % _ALIGNMENT
    if not missing:
        return b""
    filled = (missing - 2) % _ALIGNMENT  # tag and length are bytes, too
    return _PADDING_TAG + _varint(filled) + bytes(filled)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _read_varint(data: bytes, start: int) -> tuple[int, int]:
    """The number that begins at `start`, and where it ends."""
    value = 0
    for i, octet in enumerate(data[start : start + 5]):
        value |= (octet & 0x7F) << 7 * i
        if octet < 0x80:
            return value, start + i + 1
    raise FrameError("a frame that ends within a number")
