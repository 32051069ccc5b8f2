"""Sets of workers as bytes: worker i is bit i % 8 of byte i // 8."""

from __future__ import annotations

from collections.abc import Iterable


def pack(workers: Iterable[int]) -> bytes:
    """As bytes, without zeros at the end."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unpack(content: bytes) -> tuple[int, ...]:
    """In ascending order."""
    bits = int.from_bytes(content, "little")
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
