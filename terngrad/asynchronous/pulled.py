"""What a worker pulls of all ps: parameters of one run, and where that run is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from terngrad.asynchronous.space import Shard
from terngrad.cluster.channel import MembershipError
from terngrad.service.messages import Reply


@dataclasses.dataclass(frozen=True)
class Pulled:
    """What a worker computes its next gradient with.

    Attributes:
      version: updates at ps 0: the global step.
      versions: updates at each ps.
      parameters: of each ps, flat float32 or float16.
      statistics: float32, of ps 0.
      finished: there are no more steps to make.
      stopped: worker 0 has ended the run before.
      saved: what the ps hold then is in a checkpoint.
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
    """What the replies of all ps say; their parameters have `pull_bits` bits each.

    Raises:
      MembershipError: a ps sends another number of bytes than its shard has.
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
    """Raises MembershipError unless a ps has sent so many bytes."""
    if len(content) != size:
        raise MembershipError(f"ps {ps} sends {len(content)} bytes; allowed are {size}")
