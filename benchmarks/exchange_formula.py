"""The bytes that an exchange of gradients needs, without headers."""

from typing import NamedTuple

from terngrad.planes import plane_count

RING = "float32 ring"  # the engine's own all-reduce, without the suite
FLOAT_BITS = {RING: 32, "float32": 32, "float16": 16}


class Traffic(NamedTuple):
    """Bytes of one exchange.

    Attributes:
      sent: bytes that a worker sends.
      received: bytes that a worker receives.
      busiest: bytes on the busiest cable in its busier direction.
    """

    sent: float
    received: float
    busiest: float


def two_shot_traffic(values: int, workers: int, exchange: str) -> Traffic:
    """Returns the traffic of workers that exchange shares and sums (exchange/two_shot.py)."""
    sent = values * sum(_bits(exchange, workers)) * (workers - 1) / workers / 8
    return Traffic(sent, sent, sent)


def server_traffic(values: int, workers: int, exchange: str, servers: int) -> Traffic:
    """Returns the traffic of workers that push to parameter servers and get the sums back."""
    sent, received = (values * bits / 8 for bits in _bits(exchange, workers))
    return Traffic(sent, received, max(sent, received) * max(1.0, workers / servers))


def _bits(exchange: str, workers: int) -> tuple[int, int]:
    """Returns the bits of a value from one worker and of a sum."""
    floats = FLOAT_BITS.get(exchange)
    return (floats, floats) if floats else (2, plane_count(workers))
