"""The bytes that an exchange of gradients needs, without headers."""

import functools
from collections.abc import Callable

import numpy as np

from terngrad import prefix_code
from terngrad.codecs.feedback_codec import STEPS
from terngrad.exchange.parameter_server.operations import Kind, Operation
from terngrad.planes import plane_count

RING = "float32 ring"  # the engine's own all-reduce, without the suite's codecs
BOTH_WAYS = "ternary both ways"  # with --sum_codec=ternary: the means travel back as codes, too
_CLIP = 2.5  # standard deviations
_SAMPLES = 1 << 17
_STEPS = 20  # after these the size of the memory is steady

# Returns the bits of a value in the sum of some nodes' codes.
CodeBits = Callable[[int], float]
FLOAT_BITS = {RING: 32, "float32": 32, "float16": 16}


@functools.cache
def packed_bits(nodes: int) -> float:
    """Returns the bits of a value in the sum of some nodes' codes in the prefix code.

    The nodes' gradients are independent and normal, and clipped to 2.5 standard deviations. Those
    of real nets have more small values, so that their codes take fewer bits.
    """
    random = np.random.default_rng(0)
    sums = np.zeros(_SAMPLES, np.int64)
    for _ in range(nodes):
        values = random.normal(size=_SAMPLES)
        chosen = random.random(_SAMPLES) < np.minimum(np.abs(values), _CLIP) / _CLIP
        sums += np.where(chosen, np.sign(values).astype(np.int64), 0)
    return _bits_of(sums, nodes)


@functools.cache
def mean_bits() -> float:
    """Returns the bits of a value of means that are coded again, in the prefix code.

    The means are independent and normal. The owner adds each mean to its
    memory, and rounds the sum to the nearest of three levels; see codecs/sum_codec.py.
    """
    random, kept = np.random.default_rng(0), np.zeros(_SAMPLES)
    for _ in range(_STEPS):
        values = kept + random.normal(size=_SAMPLES)
        step = STEPS[1] * np.sqrt(np.mean(values**2))
        codes = np.clip(np.rint(values / step), -1, 1).astype(np.int64)
        kept = values - step * codes
    return _bits_of(codes, 1)


def _bits_of(sums: np.ndarray, largest: int) -> float:
    bits = [(sums >> k & 1).astype(np.uint8) for k in range(plane_count(largest))]
    planes = [np.packbits(each, bitorder="little").view("<u4") for each in bits]
    return 8 * prefix_code.pack(np.stack(planes, axis=1), largest).nbytes / _SAMPLES


def server_bits(exchange: str, workers: int, nodes: int = 1) -> tuple[float, float]:
    """Returns the bits a value that a worker pushes to a parameter server and gets back.

    With two workers, each gets the other's codes instead of a sum.
    """
    operation = Operation("codes", Kind.CODES, 1, local_nodes=nodes, workers=workers)
    return exchange_bits(exchange, nodes, operation.largest_result, packed_bits)


def exchange_bits(
    exchange: str, nodes: int, workers: int, code_bits: CodeBits = plane_count
) -> tuple[float, float]:
    """Returns the bits of a value in a sum over `nodes`, and in what all `workers` get back."""
    floats = FLOAT_BITS.get(exchange)
    if exchange == BOTH_WAYS:
        return code_bits(nodes), mean_bits() if code_bits is packed_bits else plane_count(1)
    return (floats, floats) if floats else (code_bits(nodes), code_bits(workers))
