"""What a worker pulls from all ps: the parameters of one run, and its status."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from terngrad.asynchronous.space import Shard
from terngrad.cluster.channel import MembershipError
from terngrad.service.messages import Reply


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The parameters for a worker's next gradient.

    Attributes:
      version: number of updates at ps 0, the global step.
      versions: number of updates at each ps.
      parameters: parameters of each ps, flat float32 or float16.
      statistics: moving statistics, float32.
      finished: whether the run has all its updates.
      stopped: whether worker 0 has ended the run early.
      saved: whether worker 0 has saved the run that it ended.
    """

    version: int
    versions: tuple[int, ...]
    parameters: tuple[np.ndarray, ...]
    statistics: np.ndarray
    finished: bool
    stopped: bool
    saved: bool


def read_pulled(
    replies: Sequence[tuple[Reply, bytearray]], shards: Sequence[Shard], pull_bits: int
) -> Pulled:
    """Reads the replies of all ps; a parameter has `pull_bits` bits.

    Raises:
      MembershipError: the number of bytes from a ps does not fit its shard.
    """
    first = replies[0][0]
    parameters, statistics = [], []
    for ps, (shard, (_, content)) in enumerate(zip(shards, replies, strict=True)):
        check_bytes(ps, content, shard.pulled_bytes(pull_bits))
        values = np.frombuffer(content, f"<f{pull_bits // 8}", shard.size)
        parameters.append(values)
        statistics.append(np.frombuffer(content, "<f4", offset=values.nbytes))
    return Pulled(
        first.version,
        tuple(reply.version for reply, _ in replies),
        tuple(parameters),
        statistics[0],
        first.finished,
        any(reply.stopped for reply, _ in replies),
        any(reply.saved for reply, _ in replies),
    )


def check_bytes(ps: int, content: bytearray, size: int) -> None:
    """Raises MembershipError unless a ps has sent `size` bytes."""
    if len(content) != size:
        raise MembershipError(f"ps {ps} sent {len(content)} bytes; allowed are {size}")
