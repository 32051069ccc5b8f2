"""A worker's calls to all ps of an asynchronous training."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import TypeVar

import numpy as np

from terngrad.asynchronous.caller import BEGIN, BYE, ENTER, FETCH, PULL, PUSH, STATE
from terngrad.asynchronous.link import Link
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.space import Share
from terngrad.asynchronous.store import Standing
from terngrad.cluster.channel import MembershipError
from terngrad.service.messages import Call, Reply
from terngrad.service.security import Tls

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
        stopped: Callable[[], bool] = lambda: False,
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
          stopped: whether this worker was asked to end: then it does not wait for a ps.
        """
        self.untold_staleness: list[int] = []
        self._timeout_secs = timeout_secs
        self._shares, self._pull_bits = shares, pull_bits
        self._tell, self._stopped = tell, stopped
        self._sequence = 0
        incarnation = secrets.randbits(63) + 1
        self._links = [
            Link(
                ps,
                ps_hosts,
                worker_hosts,
                rank,
                incarnation,
                timeout_secs,
                tls,
                facts,
                tell,
                stopped,
            )
            for ps in range(len(ps_hosts))
        ]
        self._threads = futures.ThreadPoolExecutor(len(ps_hosts))

    def enter(self, run: str = "") -> list[Standing]:
        """Reaches all ps; `run` is the one in which this worker was before, if any.

        Raises:
          MembershipError: names the ps that cannot be reached or that refuses this worker.
        """
        for link in self._links:
            link.run = run
        return self._standings()

    def begin(self, plan: Plan, states: Sequence[bytes], version: int) -> None:
        """Begins a run at all ps with the state of each share, at a version."""
        # On a new stream, perhaps of a ps that was started again, the plan goes before the state.
        enter = lambda entered: Call(act=ENTER)

        def begin_one(ps: int) -> None:
            link = self._links[ps]
            link.run, reply = plan.run, Reply(waits=True)
            while reply.waits or reply.run != plan.run:
                link.call(Call(act=BEGIN), plan.to_json().encode())
                reply, _ = link.call(Call(act=STATE, version=version), states[ps], again=enter)

        self._on_all(begin_one)

    def await_run(self) -> None:
        """Waits until all ps hold the parameters of one run.

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
                return
            secs = f"{self._timeout_secs:g} s"
            self._pause(deadline, f"worker 0 did not begin the run within {secs}")

    def pull(self) -> Pulled:
        """The parameters, as they are."""
        return self._pulled(self._alike(self._pull_one, self._pull_one))

    def push(self, contents: Sequence[bytes], versions: Sequence[int]) -> Pulled:
        """Hands in a gradient, and pulls what follows; each ps applies its part at most once.

        Args:
          contents: the part of each ps, see `Share`.
          versions: of the parameters that the gradient is of, at each ps.
        """
        self._sequence += 1
        call = lambda ps: Call(act=PUSH, sequence=self._sequence, version=versions[ps])
        push = lambda ps: self._ask(ps, call(ps), self._pulled_bytes(ps), contents[ps])
        return self._pulled(self._alike(push, self._pull_one))

    def fetch(self, sizes: Sequence[int], *, last: bool = False) -> tuple[int, list[bytearray]]:
        """The global step, and the state that each ps holds.

        Args:
          sizes: bytes of each state.
          last: pushes wait until this worker says `bye`: nothing comes after this state.
        """
        fetch = lambda ps: self._ask(ps, Call(act=FETCH, last=last), sizes[ps])
        replies = self._alike(fetch, fetch)
        for ps, (_, content) in enumerate(replies):
            _expect_bytes(ps, content, sizes[ps])
        return replies[0][0].version, [content for _, content in replies]

    def await_updates(self, version: int, secs: float) -> bool:
        """Waits at most so long until each ps has so many updates; returns whether each has."""
        deadline = time.monotonic() + secs
        while min(standing.version for standing in self._standings()) < version:
            if time.monotonic() > deadline or self._stopped():
                return False
            time.sleep(_LOOK_SECS)
        return True

    def bye(
        self, *, done: bool = False, stop: bool = False, saved: bool = False, looks: bool = False
    ) -> bool:
        """Tells the ps that this worker ends; returns whether all are known to have heard it.

        Args:
          done: because the run is finished.
          stop: the others are to end, too.
          saved: what the ps hold is in a checkpoint.
          looks: for ps that are away now; else those are told nothing.
        """
        call = Call(act=BYE, done=done, stop=stop, saved=saved)
        if looks:
            try:
                self._on_all(lambda ps: self._links[ps].call(call))
                return True
            except MembershipError as error:
                self._tell(f"{error}; it does not know that the run has ended.")
        else:
            self._on_all(lambda ps: self._links[ps].bye(call))
        return False

    def close(self) -> None:
        """Ends all streams."""
        for link in self._links:
            link.close()
        self._threads.shutdown(wait=False)

    def _standings(self) -> list[Standing]:
        return [_standing(reply) for reply in self._on_all(lambda ps: self._links[ps].enter())]

    def _pull_one(self, ps: int) -> tuple[Reply, bytearray]:
        return self._ask(ps, Call(act=PULL), self._pulled_bytes(ps))

    def _pulled_bytes(self, ps: int) -> int:
        return self._shares[ps].pulled_bytes(self._pull_bits)

    def _ask(self, ps: int, call: Call, size: int, content: bytes = b"") -> tuple[Reply, bytearray]:
        """Pushes, pulls or fetches; another run's parameters are pulled, and get no gradient."""
        link = self._links[ps]
        deadline = time.monotonic() + self._timeout_secs
        pull = lambda entered: Call(act=PULL) if entered.run != link.run else None
        again = pull if call.act == PUSH else lambda entered: None
        while True:
            reply, values = link.call(call, content, size, again)
            if not reply.waits:
                link.run = reply.run
                self.untold_staleness.extend(reply.staleness)
                return reply, values
            self._pause(deadline, f"ps {ps} does not hold the parameters of this run")
            link.enter()
            if call.act == PUSH:  # the ps holds something else than what the gradient is of
                call, content = Call(act=PULL), b""

    def _alike(
        self,
        ask: Callable[[int], tuple[Reply, bytearray]],
        again: Callable[[int], tuple[Reply, bytearray]],
    ) -> list[tuple[Reply, bytearray]]:
        """Replies of all ps that tell the same run; else they are asked again."""
        deadline = time.monotonic() + self._timeout_secs
        replies = self._on_all(ask)
        while len({reply.run for reply, _ in replies}) > 1:
            self._pause(deadline, "the ps hold parameters of different runs")
            replies = self._on_all(again)
        return replies

    def _pause(self, deadline: float, otherwise: str) -> None:
        """Before the ps are asked again; MembershipError says `otherwise` if that is too late."""
        if time.monotonic() > deadline or self._stopped():
            raise MembershipError(otherwise)
        time.sleep(_LOOK_SECS)

    def _pulled(self, replies: Sequence[tuple[Reply, bytearray]]) -> Pulled:
        first = replies[0][0]
        parameters, statistics = [], []
        for ps, (_, content) in enumerate(replies):
            _expect_bytes(ps, content, self._pulled_bytes(ps))
            values = np.frombuffer(content, f"<f{self._pull_bits // 8}", self._shares[ps].size)
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

    def _on_all(self, act: Callable[[int], _T]) -> list[_T]:
        if len(self._links) == 1:
            return [act(0)]
        return list(self._threads.map(act, range(len(self._links))))


def _standing(reply: Reply) -> Standing:
    return Standing(reply.run, reply.version, reply.waits, reply.finished)


def _expect_bytes(ps: int, content: bytearray, size: int) -> None:
    if len(content) != size:
        raise MembershipError(f"ps {ps} sends {len(content)} bytes; expected are {size}")
