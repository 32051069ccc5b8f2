"""Wire format, version 1: one bucket of codes, or of sums of codes, as bytes.

All numbers are little-endian. A message is a header, the scales and the planes:

    offset  size  field
         0     4  magic, b"TGRD"
         4     2  version, 1
         6     1  codec, 1 = ternary
         7     1  planes k: 2 for one node's codes, ceil(log2(2 N + 1)) for sums over N nodes
         8     8  step
        16     4  bucket, index in the layout
        20     4  nodes N that the sums are over
        24     8  elements M of the bucket before padding
        32     4  scales v, one a variable of the bucket
        36    16  layout fingerprint
        52    4v  scales, float32
    52 + 4v  4 k ceil(M / 32)  words, uint32, in the order of terngrad/planes.py
"""

from __future__ import annotations

import dataclasses
import struct

import numpy as np

from terngrad import planes
from terngrad.layout import Layout

MAGIC = b"TGRD"
VERSION = 1
TERNARY = 1

_HEADER = struct.Struct("<4sHBBQIIQI16s")
HEADER_BYTES = _HEADER.size


@dataclasses.dataclass(frozen=True)
class Message:
    """A bucket on the wire.

    Attributes:
      step: the step whose gradients these are.
      bucket: index of the bucket in the layout.
      nodes: nodes that the codes are summed over; 1 = one node's codes.
      scales: float32 [v], in the order of the bucket's segments.
      words: uint32 [ceil(M / 32), k], bit planes.
    """

    step: int
    bucket: int
    nodes: int
    scales: np.ndarray
    words: np.ndarray


class WireError(ValueError):
    """A message that does not fit what the receiver expects."""


def write(message: Message, layout: Layout) -> bytes:
    """Returns the message as bytes.

    Raises:
      WireError: if step or bucket are out of range, or scales or words do not have its shape.
    """
    if not 0 <= message.bucket < len(layout.buckets):
        allowed = f"0 to {len(layout.buckets) - 1}"
        raise WireError(f"bucket is {message.bucket}; allowed is {allowed}.")
    if not 0 <= message.step < 1 << 64:
        raise WireError(f"step is {message.step}; allowed is 0 to 2^64 - 1.")
    bucket = layout.buckets[message.bucket]
    scales = np.ascontiguousarray(message.scales, "<f4")
    words = np.ascontiguousarray(message.words, "<u4")
    _expect("shape of the scales", scales.shape, (len(bucket.segments),))
    _expect("shape of the words", words.shape, _words_shape(bucket.size, message.nodes))
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        TERNARY,
        words.shape[1],
        message.step,
        message.bucket,
        message.nodes,
        bucket.size,
        len(scales),
        layout.fingerprint(),
    )
    return header + scales.tobytes() + words.tobytes()


def read(data: bytes, layout: Layout, step: int, bucket: int, nodes: int) -> Message:
    """Reads the message of a step and bucket; the arrays share memory with `data`.

    Everything is checked against what the receiver expects before a size from the message is used,
    and every value of an accepted message lies within [-nodes, nodes].

    Raises:
      WireError: names the field, what was received, and what is allowed.
    """
    if len(data) < HEADER_BYTES:
        raise WireError(f"message has {len(data)} bytes; a header alone has {HEADER_BYTES}.")
    fields = _HEADER.unpack_from(data)
    magic, version, codec, plane_count, got_step, got_bucket, got_nodes, elements, count, print_ = (
        fields
    )
    _expect("magic", magic, MAGIC)
    _expect("version", version, VERSION)
    _expect("codec", codec, TERNARY)
    _expect("layout fingerprint", print_.hex(), layout.fingerprint().hex())
    _expect("step", got_step, step)
    _expect("bucket", got_bucket, bucket)
    _expect("nodes", got_nodes, nodes)
    expected = layout.buckets[bucket]
    shape = _words_shape(expected.size, nodes)
    _expect("elements", elements, expected.size)
    _expect("scales", count, len(expected.segments))
    _expect("planes", plane_count, shape[1])
    _expect("length in bytes", len(data), HEADER_BYTES + 4 * (count + shape[0] * shape[1]))
    scales = np.frombuffer(data, "<f4", count, HEADER_BYTES)
    words = np.frombuffer(data, "<u4", shape[0] * shape[1], HEADER_BYTES + 4 * count).reshape(shape)
    if not np.all(scales >= 0.0):  # NaN is not; an infinite scale tells of a broken gradient
        raise WireError(f"scales are {scales}; allowed are 0 and more.")
    if not planes.fits(words, elements, nodes):
        raise WireError(f"words are no sum over {nodes} nodes, padded with zeros.")
    return Message(step, bucket, nodes, scales, words)


def _words_shape(elements: int, nodes: int) -> tuple[int, int]:
    return planes.padded(elements) // planes.GROUP, planes.plane_count(nodes)


def _expect(field: str, received: object, allowed: object) -> None:
    if received != allowed:
        raise WireError(f"{field} is {received}; allowed is {allowed}.")
