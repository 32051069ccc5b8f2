"""The bytes that an exchange of gradients needs, without headers."""

from typing import NamedTuple

from terngrad.exchange.exchange import CodeBits
from terngrad.exchange.parameter_server.operations import nodes_in_result
from terngrad.exchange.two_shot import is_one_shot
from terngrad.planes import packed_bits, plane_count

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


def all_reduce_traffic(
    values: int, workers: int, exchange: str, code_bits: CodeBits = plane_count
) -> Traffic:
    """Returns the traffic of workers that add in one shot or two (exchange/two_shot.py)."""
    local, total = _bits(exchange, workers, code_bits)
    one_shot = is_one_shot(local, total, workers) and exchange != RING
    bits = local * (workers - 1) if one_shot else (local + total) * (workers - 1) / workers
    return Traffic(*[values * bits / 8] * 3)


def server_traffic(values: int, workers: int, exchange: str, servers: int) -> Traffic:
    """Returns the traffic of workers that push to parameter servers and get the sums back.

    Where this saves bits, a worker gets the sum of the others and adds its own codes itself.
    """
    bits = _bits(exchange, nodes_in_result(workers, local_nodes=1), packed_bits)
    sent, received = (values * each / 8 for each in bits)
    return Traffic(sent, received, max(sent, received) * max(1.0, workers / servers))


def _bits(exchange: str, nodes: int, code_bits: CodeBits = plane_count) -> tuple[float, float]:
    """Returns the bits of a value from one worker and of a sum over some."""
    floats = FLOAT_BITS.get(exchange)
    return (floats, floats) if floats else (code_bits(1), code_bits(nodes))
