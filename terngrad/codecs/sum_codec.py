"""Means return to the workers in few bits: each owner encodes its share again, with feedback.

    codes -> exact sum of the own share -> mean + memory -> codes and scales -> to all

Each process owns a share of each bucket (`Exchange.share`). It adds what it has kept of the means
before, rounds to the nearest of three levels as the codec ternary-feedback does, keeps the rest,
and sends all processes the codes. It uses these itself, so copies of the parameters stay equal.

There is a scale for each block of `SUM_BLOCK` neighbours in a bucket, as far as they belong to one
variable. A block has one owner, so neither scales nor codes depend on how many owners there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from terngrad import ternary
from terngrad.codecs.codec import Codec
from terngrad.codecs.feedback_codec import STEPS
from terngrad.codecs.integer_codec import SCALE_BYTES, IntegerCodec
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import CodedPayload, Exchange, LocalBucket, Summed
from terngrad.layout import FEEDBACK_CODES, SUM_CODECS
from terngrad.ops.gradient_kernels import Sums
from terngrad.parts import Parts
from terngrad.planes import GROUP, SUM_BLOCK, padded, plane_count

KEPT_SUMS = "kept_sums/"  # begins the names of what an owner keeps
_CPU = "/CPU:0"  # the sums are there, also where gradients are on GPUs

SumMemory = list[tf.Tensor]  # what an owner keeps of its means, float32, a tensor for each piece


class _Piece(NamedTuple):
    """Values of a variable that one process owns: they lie within a block, or begin with one.

    Attributes:
      place: of the variable among the codec's variables.
      first: index of the first of them in the variable.
      size: how many.
      parts: which share a scale.
    """

    place: int
    first: int
    size: int
    parts: Parts


class SumCodec:
    """Codes the share of a bucket's mean that this process owns.

    Like a codec it holds no state: its memory goes in and comes out.

    Attributes:
      names: of the memory's tensors.
    """

    def __init__(self, codec: IntegerCodec, exchange: Exchange) -> None:
        """Codes what `codec` delivers through `exchange`.

        Raises:
          ValueError: the means of the codec are not decoded sums of its codes.
        """
        name = codec.sum_codec
        self._max_code, self._encoder = FEEDBACK_CODES[SUM_CODECS[name]], SUM_CODECS[name]
        self._codec, self._exchange = codec, exchange
        self._sizes = [math.prod(shape) for shape in codec.shapes]
        self._elements = sum(self._sizes)
        first, end = self._values(exchange.share)
        self._pieces = list(self._cut(first, end))
        of_codec = [codec.variables[piece.place] for piece in self._pieces]
        self.names = [
            f"{KEPT_SUMS}{variable}/{piece.first}"
            for variable, piece in zip(of_codec, self._pieces, strict=True)
        ]
        self._variables = of_codec
        offsets = [sum(self._sizes[:i]) for i in range(len(self._sizes))]
        self._parts = tuple(map(_blocks, offsets, self._sizes))  # of whole variables
        self._places = [
            [sum(each.count for each in self._parts[: piece.place]) + skipped + i]
            for piece in self._pieces
            for skipped in [self._block(offsets[piece.place], piece.first)]
            for i in range(piece.parts.count)
        ]  # of the own scales among all

    def init(self) -> SumMemory:
        """Returns the memory before the first step: zeros."""
        return [tf.zeros([piece.size]) for piece in self._pieces]

    def exchange(self, memory: SumMemory) -> CodedSums:
        """Returns the exchange that a codec uses for one step, instead of its own."""
        return CodedSums(self, self._exchange, memory)

    def sum_codes(self, bucket: LocalBucket, memory: SumMemory) -> tuple[Summed, SumMemory]:
        """Returns what `Exchange.sum_codes` does, with coded means, and what this process keeps."""
        exchange, kernels, name = self._exchange, self._codec.kernels, f"{bucket.name}/back"
        codes, words = exchange.scatter_codes(bucket)
        with tf.device(_CPU):
            own, scales, kept = self._code(words, bucket.units, exchange.nodes(words), memory)
            count = sum(parts.count for parts in self._parts)
            scales = exchange.max([_spread(scales, self._places, count)], name)
        whole = exchange.gather_codes(own, self._elements, name, self._max_code)
        units, one = ternary.unit(scales, self._max_code), tf.constant(1)
        if not bucket.decoded:
            sums = Sums(bucket.variables, whole, units, one, self._parts)
            return Summed(codes, sums), kept
        means = kernels.decode(whole, units, one, bucket.shapes, self._parts)
        return Summed(codes, means), kept

    def _code(
        self, words: tf.Tensor, units: tf.Tensor, nodes: tf.Tensor, memory: SumMemory
    ) -> tuple[tf.Tensor, tf.Tensor, SumMemory]:
        """Returns the codes of the own share, their scales, and the rounding errors."""
        pieces, kernels = self._pieces, self._codec.kernels.of_cpu
        if not pieces:
            # No codes, but made of the sums: TensorFlow may drop an operation without a use.
            return words[:, : plane_count(self._max_code)], tf.zeros([0]), []
        given = tf.split(units, [parts.count for parts in self._codec.parts])
        means = kernels.decode(
            words,
            tf.concat([given[piece.place] for piece in pieces], 0),
            nodes,
            [(piece.size,) for piece in pieces],
            [self._codec.parts[p.place]._replace(first=p.first) for p in pieces],
        )
        parts = tuple(piece.parts for piece in pieces)
        corrected, stats = kernels.correct(means, memory, parts)
        counts = [float(n) for piece in pieces for n in piece.parts.sizes(piece.size)]
        levels = self._max_code * STEPS[self._max_code]
        # Not a constant: Grappler would turn the division into a product with reciprocals, whose
        # rounding would depend on how the values are shared out. See `ternary.mean_scale`.
        divisors = tf.where(nodes > 0, tf.constant(counts), 1.0)
        scales = ternary.nearest_scale(stats, divisors, levels)
        zero = tf.constant(0)  # nothing is drawn
        key, bounds = (
            DrawKey(tf.constant(0, tf.uint64), zero, zero),
            tf.fill(scales.shape, math.inf),
        )
        codes = kernels.encode(
            corrected, self._variables, bounds, scales, key, self._encoder, parts
        )
        units = ternary.unit(scales, self._max_code)
        return codes, scales, kernels.subtract(corrected, codes, units, parts)

    def payload(self) -> dict[int, CodedPayload]:
        """Returns the bytes of codes and scales on their way back, by variable.

        Where owners change, they are those with all processes.
        """
        planes = plane_count(self._max_code)
        padding = padded(self._elements) / max(self._elements, 1)
        first, end = self._values(self._exchange.share_of_all)
        own = (end - first) / max(self._elements, 1)
        each = zip(self._codec.variables, self._sizes, self._parts, strict=True)
        return {
            variable: CodedPayload(size * padding / 8 * planes, SCALE_BYTES * parts.count, own)
            for variable, size, parts in each
        }

    def _values(self, share: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
        """Returns the first and the end of the bucket's values in a share of its groups."""
        first, end = share(padded(self._elements) // GROUP)
        return min(first * GROUP, self._elements), min(end * GROUP, self._elements)

    @staticmethod
    def _block(offset: int, first: int) -> int:
        """Returns which of its variable's blocks a value lies in."""
        return (offset + first) // SUM_BLOCK - offset // SUM_BLOCK

    def _cut(self, first: int, end: int):
        """Yields the pieces of the bucket's values [first, end)."""
        offset = 0
        for place, size in enumerate(self._sizes):
            begin, last = max(first, offset), min(end, offset + size)
            inner = min(-(-begin // SUM_BLOCK) * SUM_BLOCK, last)  # where a block begins
            for start, stop in ((begin, inner), (inner, last)):
                if start < stop:
                    parts = _blocks(start, stop - start)
                    yield _Piece(place, start - offset, stop - start, parts._replace(first=0))
            offset += size


class CodedSums:
    """An exchange for one step of a codec: its sums are coded again before they return.

    Attributes:
      kept: the memory after the step, once the codec has delivered.
    """

    def __init__(self, sum_codec: SumCodec, exchange: Exchange, memory: SumMemory) -> None:
        """Uses the `memory` before the step."""
        self._sum_codec, self._exchange, self._memory = sum_codec, exchange, memory
        self.kept = memory

    def __getattr__(self, name: str) -> object:
        """Returns an attribute of the exchange that this one wraps."""
        return getattr(self._exchange, name)

    def sum_codes(self, bucket: LocalBucket) -> Summed:
        """See `Exchange`; the result is the same on all processes."""
        found, self.kept = self._sum_codec.sum_codes(bucket, self._memory)
        return found


def sum_codecs(codecs: Sequence[Codec], exchange: Exchange) -> list[SumCodec | None]:
    """Returns the codec of the sums of each codec; None = these stay exact."""
    return [SumCodec(codec, exchange) if codec.sum_codec else None for codec in codecs]


def coded_exchanges(
    sums: Sequence[SumCodec | None], memories: Sequence[SumMemory]
) -> list[CodedSums | None]:
    """Returns the exchange that each codec uses in a step; None = its own.

    Args:
      sums: of `sum_codecs`.
      memories: before the step, by codec; () = none was read, because there is none.
    """
    pairs = itertools.zip_longest(sums, memories)
    return [each.exchange(memory) if each else None for each, memory in pairs]


def _spread(numbers: tf.Tensor, places: Sequence[Sequence[int]], count: int) -> tf.Tensor:
    """Returns float32 [count] with the numbers in their places, else zeros."""
    if not places:
        return tf.zeros([count])
    return tf.scatter_nd(tf.constant(places), numbers, [count])


def _blocks(offset: int, size: int) -> Parts:
    """Returns the parts of values that begin at a place of the bucket."""
    first = offset % SUM_BLOCK
    return Parts(SUM_BLOCK, max(1, -(-(first + size) // SUM_BLOCK)), first)
