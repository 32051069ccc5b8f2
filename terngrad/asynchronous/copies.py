"""Parameters in few bits on their way to a worker: codes of what its copy lacks (EF21-P).

    the ps:      change = code(parameters - shadow), shadow += change
    the worker:  copy += change

For each worker a ps keeps a shadow, which is that worker's copy of the ps' parameters, bit for bit.
A code is the nearest of three levels, with a scale for each `SUM_BLOCK` neighbours of a variable,
as in codecs/sum_codec.py. The rest stays part of the difference, and so of a later change. Codes
travel in the prefix code (terngrad/prefix_code.py), as pushes and sums of other trainings do. The
parameters themselves travel in the first pull of a stream, and in one of a worker that does not
have the copy which the shadow is. See Gruntkowska, Tyurin and Richtarik, 2022, "EF21-P and
Friends".
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad import ternary
from terngrad.asynchronous.messages import exactly
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.row import Shard
from terngrad.codecs.feedback_codec import STEPS
from terngrad.draws import DrawKey
from terngrad.layout import FEEDBACK_CODES, FLOAT, PULL_CODECS
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.parts import Parts
from terngrad.planes import SUM_BLOCK, plane_count
from terngrad.service.messages import Reply

_CPU = "/CPU:0"
FLOAT_BYTES = 4
_AT_ONCE = 1 << 16  # values whose intermediate results stay in the cache, and take no memory


class Change(NamedTuple):
    """A change that is sent.

    Attributes:
      content: its code.
      values: what the code stands for, float32.
    """

    content: bytes
    values: np.ndarray


class ChangeCode:
    """Writes and reads changes of a shard's parameters: units of codes, then the packed codes.

    It holds no state. Operations run eagerly: within a function Grappler might round otherwise.

    Attributes:
      size: number of the shard's parameters.
      allowed_bytes: bytes that a change may have; the most are those of the codes' bit planes.
    """

    def __init__(self, codec: str, sizes: Sequence[int], kernels: GradientKernels) -> None:
        """Codes changes of variables.

        Args:
          codec: one of `layout.PULL_CODECS`.
          sizes: of the variables, with padding; together they are whole groups of 32 values.
          kernels: encode and decode, and pack codes; others give the same bits.
        """
        self._encoder = PULL_CODECS[codec]
        self._max_code = FEEDBACK_CODES[self._encoder]
        self._kernels = kernels.of_cpu
        self._packing = kernels.packing
        self._shapes = [(size,) for size in sizes]
        self._ends = list(itertools.accumulate(sizes))[:-1]  # of all variables but the last
        self._parts = tuple(map(_blocks, sizes))
        counts = (parts.sizes(size) for parts, size in zip(self._parts, sizes, strict=True))
        self._counts = np.float32([count for own in counts for count in own])
        self._planes = plane_count(self._max_code)
        self.size = sum(sizes)
        limit = int(_max_bytes(sizes, self._planes))
        self.allowed_bytes = range(FLOAT_BYTES * len(self._counts), limit + 1)

    def write(self, change: np.ndarray) -> Change | None:
        """Codes a change, float32 [size]; returns None if a scale would not be finite."""
        if not self.size:
            return Change(b"", change)
        levels = self._max_code * STEPS[self._max_code]
        with tf.device(_CPU):
            zero = tf.constant(0)  # nothing is drawn
            key = DrawKey(tf.constant(0, tf.uint64), zero, zero)
            values = [tf.constant(part) for part in np.split(change, self._ends)]
            stats = self._kernels.stats(values, self._parts)
            scales = ternary.nearest_scale(stats, tf.constant(self._counts), levels)
            places, bounds = range(len(values)), tf.fill(scales.shape, math.inf)
            words = self._kernels.encode(
                values, places, bounds, scales, key, self._encoder, self._parts
            )
            units = ternary.unit(scales, self._max_code)
            if not np.isfinite(units).all():
                return None
            packed = self._packing.pack(words.numpy().data, self._max_code)
            content = b"".join([units.numpy().tobytes(), packed])
            return Change(content, self._decode(words, units))

    def read(self, content: bytes | bytearray | memoryview) -> np.ndarray:
        """Returns the change that a code stands for, float32 [size].

        Args:
          content: the code, of `allowed_bytes`.

        Raises:
          ValueError: it is no code of so many finite values; the text says what a ps has sent.
        """
        if not self.size:
            return np.zeros(0, np.float32)
        units = np.frombuffer(content, "<f4", len(self._counts))
        packed = memoryview(content)[units.nbytes :]
        try:
            words = self._packing.read(packed, self._max_code, self.size)
        except ValueError as error:
            raise ValueError(f"sent a malformed change: {error}") from None
        if not np.isfinite(units).all():
            raise ValueError("sent a change with units that are not finite")
        with tf.device(_CPU):
            return self._decode(tf.constant(words), tf.constant(units))

    def _decode(self, words: tf.Tensor, units: tf.Tensor) -> np.ndarray:
        nodes = tf.constant(1)
        parts = self._kernels.decode(words, units, nodes, self._shapes, self._parts)
        return tf.concat(parts, 0).numpy()


def change_codes(
    plan: Plan, shards: Iterable[Shard], kernels: GradientKernels
) -> list[ChangeCode | None]:
    """Returns what codes the changes of each shard; None if its parameters travel as floats."""
    if plan.pull_codec == FLOAT:
        return [None for _ in shards]
    sizes = ([own.size for own in shard.ranges] for shard in shards)
    return [ChangeCode(plan.pull_codec, own, kernels) for own in sizes]


def max_coded_bytes(plan: Plan, shards: Iterable[Shard]) -> dict[int, float]:
    """Returns the most bytes that a change of the parameters takes, by variable."""
    planes = plane_count(FEEDBACK_CODES[PULL_CODECS[plan.pull_codec]])
    found: dict[int, float] = {}
    for own in (own for shard in shards for own in shard.ranges):
        found[own.variable] = found.get(own.variable, 0) + _max_bytes([own.size], planes)
    return found


class Sent(NamedTuple):
    """What a ps sends a worker.

    Attributes:
      content: parameters, then the moving statistics; or these, then a change.
      copy: number of the copy that the worker has then; 0 = none.
      is_coded: whether it is a change.
    """

    content: bytes
    copy: int = 0
    is_coded: bool = False


class Shadow:
    """The copy of a ps' parameters that a worker has. For one thread at a time.

    Attributes:
      number: of the copy; 0 = the worker has none.
      values: float32, or None.
    """

    def __init__(self) -> None:
        """The worker has no copy yet."""
        self.number, self.values = 0, None
        self._code: ChangeCode | None = None

    def next(self, code: ChangeCode, content: bytes, copy: int) -> Sent:
        """Returns what gives a worker a newer copy; the shadow is that copy then.

        Args:
          code: of the run's changes.
          content: the parameters, float32, then the moving statistics.
          copy: number of the copy that the worker has; 0 = none.
        """
        values = np.frombuffer(content, "<f4", code.size)
        change = None
        if copy and copy == self.number and code is self._code:
            with np.errstate(all="ignore"):  # a change that is not finite has no code
                change = code.write(values - self.values)
        if change is None:
            self._code, self.values = code, values.copy()
            self.number = secrets.randbits(62) + 1  # no other stream has it
            return Sent(content, self.number)
        self.values = changed(self.values, change.values)
        self.number += 1
        return Sent(content[values.nbytes :] + change.content, self.number, is_coded=True)


class Copy:
    """A worker's copy of the parameters of one ps.

    Attributes:
      number: of the copy; 0 = there is none that a ps could change.
    """

    def __init__(self, shard: Shard, pull_bits: int, code: ChangeCode | None) -> None:
        """Has no parameters yet.

        Args:
          shard: of the ps.
          pull_bits: bits of a parameter that is sent as a float, 32 or 16.
          code: of the changes; None = all parameters are sent as floats.
        """
        self.number = 0
        self._shard, self._bits, self._code = shard, pull_bits, code
        self._values: np.ndarray | None = None

    @property
    def sizes(self) -> list[range]:
        """Bytes that a reply's content may have: of parameters, and of a change."""
        return [self.sizes_of(is_coded=False)] + [self.sizes_of(is_coded=True)] * bool(self._code)

    def sizes_of(self, *, is_coded: bool) -> range:
        """Returns the bytes that a reply's content of one kind may have."""
        if is_coded and self._code:
            statistics, allowed = FLOAT_BYTES * self._shard.statistics, self._code.allowed_bytes
            return range(statistics + allowed.start, statistics + allowed.stop)
        return exactly(self._shard.pulled_bytes(self._bits))

    def take(self, reply: Reply, content: bytearray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the parameters and moving statistics of a reply, whose size is right.

        Raises:
          ValueError: it is a change of another copy, or its codes are malformed; the text says what
            a ps has sent. The copy stays as it was.
        """
        if reply.coded:
            if not self._code or self._values is None or reply.copy != self.number + 1:
                raise ValueError(f"sent copy {reply.copy} as a change of copy {self.number}")
            statistics = np.frombuffer(content, "<f4", self._shard.statistics)
            change = self._code.read(memoryview(content)[statistics.nbytes :])
            values = changed(self._values, change)
        else:
            values = np.frombuffer(content, f"<f{self._bits // 8}", self._shard.size)
            statistics = np.frombuffer(content, "<f4", offset=values.nbytes)
        self.number, self._values = reply.copy, values
        return values, statistics


def changed(values: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Returns values + change, float32, with zeros for denormal sums.

    Some threads flush these to zero and others do not, but copy and shadow must be equal.
    """
    total = np.empty_like(values)
    for start in range(0, len(values), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        own = np.add(values[part], change[part], out=total[part])
        own[np.abs(own) < ternary.SMALLEST_NORMAL] = 0.0
    return total


def _blocks(size: int) -> Parts:
    return Parts(SUM_BLOCK, -(-size // SUM_BLOCK))


def _max_bytes(sizes: Sequence[int], planes: int) -> float:
    scales = sum(_blocks(size).count for size in sizes)
    return FLOAT_BYTES * scales + sum(sizes) * planes / 8
