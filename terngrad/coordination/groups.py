"""Sets of workers, or of ps, as bytes: worker i is bit i % 8 of byte i // 8."""

from __future__ import annotations

from collections.abc import Iterable


def pack(workers: Iterable[int]) -> bytes:
    """Returns a set of workers as bytes, without zeros at the end."""
    bits = 0
    for worker in workers:
        bits |= 1 << worker
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unpack(content: bytes, workers: int | None = None) -> tuple[int, ...]:
    """Returns the workers of a set in ascending order.

    Args:
      content: the set.
      workers: number of workers, or of ps, that exist; None = unknown.

    Raises:
      ValueError: the set has a member that does not exist.
    """
    bits = int.from_bytes(content[: None if workers is None else workers // 8 + 1], "little")
    if workers is not None and (bits >> workers or len(content) > workers // 8 + 1):
        raise ValueError(f"a set has members that do not exist; allowed are 0 to {workers - 1}")
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
