"""A worker's calls to all ps of an asynchronous training."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import TypeVar

import numpy as np

from terngrad.exchange.channel import MembershipError
from terngrad.exchange.parameter_server.asynchronous.caller import (
    BEGIN,
    BYE,
    FETCH,
    PULL,
    PUSH,
    STATE,
)
from terngrad.exchange.parameter_server.asynchronous.link import Link
from terngrad.exchange.parameter_server.asynchronous.plan import Plan
from terngrad.exchange.parameter_server.asynchronous.space import Share
from terngrad.exchange.parameter_server.asynchronous.store import Standing
from terngrad.exchange.parameter_server.messages import Call, Reply
from terngrad.exchange.parameter_server.security import Tls

_LOOK_SECS = 0.3

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Pulled:
    """What a worker computes its next gradient with.

    Attributes:
      version: updates at ps 0: the global step.
      versions: updates at each ps.
      parameters: of each ps, flat float32 or float16.
      statistics: float32, of ps 0.
      finished: there are no more steps to make.
      stopped: worker 0 was asked to end the run.
    """

    version: int
    versions: tuple[int, ...]
    parameters: tuple[np.ndarray, ...]
    statistics: np.ndarray
    finished: bool
    stopped: bool


class Client:
    """The calls of one worker.

    Attributes:
      untold_staleness: of all workers' updates, to worker 0; the caller empties it.
    """

    def __init__(
        self,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        rank: int,
        timeout_secs: float,
        shares: Sequence[Share],
        pull_bits: int,
        facts: Mapping[str, str],
        tls: Tls | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Nothing is sent yet.

        Args:
          ps_hosts: "host:port" of each ps; they may start later.
          worker_hosts: of each worker, for messages.
          rank: of this worker.
          timeout_secs: how long a ps may be away.
          shares: what each ps holds.
          pull_bits: 32 or 16, of a parameter as it is pulled.
          facts: what all workers must have in common.
          tls: None = plain text.
          tell: called with a line when a ps is lost, and when it is found again.
        """
        self.untold_staleness: list[int] = []
        self._timeout_secs = timeout_secs
        self._shares, self._pull_bits = shares, pull_bits
        self._sequence = 0
        incarnation = secrets.randbits(63) + 1
        self._links = [
            Link(ps, ps_hosts, worker_hosts, rank, incarnation, timeout_secs, tls, facts, tell)
            for ps in range(len(ps_hosts))
        ]
        self._threads = futures.ThreadPoolExecutor(len(ps_hosts))

    @property
    def bytes_sent(self) -> int:
        """In frames, since the start."""
        return sum(link.bytes_sent for link in self._links)

    @property
    def bytes_received(self) -> int:
        """In frames, since the start."""
        return sum(link.bytes_received for link in self._links)

    def enter(self, run: str = "") -> list[Standing]:
        """Reaches all ps; `run` is the one in which this worker was before, if any.

        Raises:
          MembershipError: names the ps that cannot be reached or that refuses this worker.
        """
        for link in self._links:
            link.run = run
        return [_standing(reply) for reply in self._on_all(lambda ps: self._links[ps].enter())]

    def begin(self, plan: Plan, states: Sequence[bytes], version: int) -> None:
        """Begins a run at all ps with the state of each share, at a version."""

        def begin_one(ps: int) -> None:
            link = self._links[ps]
            link.run = plan.run
            # A ps that is lost in between knows nothing of the plan: the state is refused.
            link.call(Call(act=BEGIN), plan.to_json().encode())
            link.call(Call(act=STATE, version=version), states[ps])

        self._on_all(begin_one)

    def await_run(self) -> str:
        """Waits until all ps hold the parameters of one run; returns it.

        Raises:
          MembershipError: worker 0 did not begin one in time.
        """
        deadline = time.monotonic() + self._timeout_secs
        while True:
            standings = self.enter()
            runs = {"" if standing.waits else standing.run for standing in standings}
            if len(runs) == 1 and (run := runs.pop()):
                for link in self._links:
                    link.run = run
                return run
            if time.monotonic() > deadline:
                secs = f"{self._timeout_secs:g} s"
                raise MembershipError(f"worker 0 did not begin the run within {secs}")
            time.sleep(_LOOK_SECS)

    def pull(self) -> Pulled:
        """The parameters, as they are."""
        return self._pulled(self._on_all(lambda ps: self._ask(ps, Call(act=PULL), b"")))

    def push(self, contents: Sequence[bytes], versions: Sequence[int]) -> Pulled:
        """Hands in a gradient, and pulls what follows; each ps applies its part at most once.

        Args:
          contents: the part of each ps, see `Share`.
          versions: of the parameters that the gradient is of, at each ps.
        """
        self._sequence += 1
        push = lambda ps: Call(act=PUSH, sequence=self._sequence, version=versions[ps])
        return self._pulled(self._on_all(lambda ps: self._ask(ps, push(ps), contents[ps])))

    def fetch(self) -> tuple[int, list[bytearray]]:
        """The global step, and the state that each ps holds."""
        replies = self._on_all(lambda ps: self._links[ps].call(Call(act=FETCH)))
        self._note(replies[0][0])
        return replies[0][0].version, [content for _, content in replies]

    def bye(self, *, done: bool = False, stop: bool = False) -> None:
        """Tells all ps that this worker ends: because the run is finished, or is to end."""
        self._on_all(lambda ps: self._links[ps].call(Call(act=BYE, done=done, stop=stop)))

    def close(self) -> None:
        """Ends all streams."""
        for link in self._links:
            link.close()
        self._threads.shutdown(wait=False)

    def _ask(self, ps: int, call: Call, content: bytes) -> tuple[Reply, bytearray]:
        """Pushes or pulls; another run's parameters are pulled, and get no gradient of this."""
        link = self._links[ps]
        deadline = time.monotonic() + self._timeout_secs
        instead = lambda entered: None if entered.run == link.run else Call(act=PULL)
        while True:
            reply, values = link.call(call, content, instead)
            if not reply.waits:
                link.run = reply.run
                return reply, values
            if time.monotonic() > deadline:
                raise MembershipError(f"ps {ps} has no parameters: its snapshot is gone")
            time.sleep(_LOOK_SECS)
            call, content = Call(act=PULL), b""
            link.enter()

    def _pulled(self, replies: Sequence[tuple[Reply, bytearray]]) -> Pulled:
        first = replies[0][0]
        self._note(first)
        parameters, statistics = [], []
        for (_, content), share in zip(replies, self._shares, strict=True):
            if len(content) != share.pulled_bytes(self._pull_bits):
                raise MembershipError(f"a ps sends {len(content)} bytes of parameters")
            values = np.frombuffer(content, f"<f{self._pull_bits // 8}", share.size)
            parameters.append(values)
            statistics.append(np.frombuffer(content, "<f4", offset=values.nbytes))
        return Pulled(
            first.version,
            tuple(reply.version for reply, _ in replies),
            tuple(parameters),
            statistics[0],
            any(reply.finished for reply, _ in replies[:1]),
            any(reply.stopped for reply, _ in replies),
        )

    def _note(self, reply: Reply) -> None:
        self.untold_staleness.extend(reply.staleness)

    def _on_all(self, act: Callable[[int], _T]) -> list[_T]:
        if len(self._links) == 1:
            return [act(0)]
        return list(self._threads.map(act, range(len(self._links))))


def _standing(reply: Reply) -> Standing:
    return Standing(reply.run, reply.version, reply.waits)
