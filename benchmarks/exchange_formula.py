"""The bytes that an exchange of gradients needs, without headers."""

from typing import NamedTuple

from terngrad.planes import plane_count

RING = "float32 ring"  # of an engine itself, without the suite
_FLOAT_BITS = {RING: 32, "float32": 32, "float16": 16}


class Traffic(NamedTuple):
    """Bytes of one exchange.

    Attributes:
      sent: by a worker.
      received: by a worker.
      busiest: that cross the busiest cable in its busier direction.
    """

    sent: float
    received: float
    busiest: float


def two_shot_traffic(values: int, workers: int, exchange: str) -> Traffic:
    """Of workers that hand each other shares and sums (terngrad/exchange/two_shot.py)."""
    sent = values * sum(_bits(exchange, workers)) * (workers - 1) / workers / 8
    return Traffic(sent, sent, sent)


def server_traffic(values: int, workers: int, exchange: str, servers: int) -> Traffic:
    """Of workers that push to so many parameter servers, and get the sums from them."""
    sent, received = (values * bits / 8 for bits in _bits(exchange, workers))
    return Traffic(sent, received, max(sent, received) * max(1.0, workers / servers))


def _bits(exchange: str, workers: int) -> tuple[int, int]:
    """Bits of a worker's value, and of a sum."""
    floats = _FLOAT_BITS.get(exchange)
    return (floats, floats) if floats else (2, plane_count(workers))
