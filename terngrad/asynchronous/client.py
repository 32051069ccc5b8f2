"""A worker's calls to all ps of an asynchronous training."""

from __future__ import annotations

import collections
import dataclasses
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from typing import TypeVar

import numpy as np

from terngrad.asynchronous.copies import ChangeCode, Copy
from terngrad.asynchronous.messages import (
    BEGIN,
    BYE,
    ENTER,
    FETCH,
    PULL,
    PUSH,
    STATE,
    RunStatus,
    exactly,
    sizes_text,
    status_in,
)
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.remote import RemotePs
from terngrad.asynchronous.row import Shard
from terngrad.cluster.addresses import name_of
from terngrad.cluster.errors import MembershipError
from terngrad.connect.channel import KeepAlive
from terngrad.connect.config import ConnectConfig
from terngrad.service.messages import Call, Reply

_POLL_SECS = 0.3
_MAX_UNTAKEN = 1 << 16  # values of staleness; older ones are dropped
_T = TypeVar("_T")


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


def _read_pulled(replies: Sequence[tuple[Reply, bytearray]], copies: Sequence[Copy]) -> Pulled:
    """Reads the replies of all ps into the copies of their parameters.

    Raises:
      MembershipError: what a ps has sent does not fit its shard, or the copy of it.
    """
    first = replies[0][0]
    parameters, statistics = [], []
    for ps, (copy, (reply, content)) in enumerate(zip(copies, replies, strict=True)):
        _check_bytes(ps, content, copy.sizes_of(is_coded=reply.coded))
        try:
            values, moving = copy.take(reply, content)
        except ValueError as error:
            raise MembershipError(f"ps {ps} {error}") from None
        parameters.append(values)
        statistics.append(moving)
    return Pulled(
        first.version,
        tuple(reply.version for reply, _ in replies),
        tuple(parameters),
        statistics[0],
        first.finished,
        any(reply.stopped for reply, _ in replies),
        any(reply.saved for reply, _ in replies),
    )


def _check_bytes(ps: int, content: bytearray, sizes: range) -> None:
    """Raises MembershipError unless a ps has sent as many bytes as are allowed."""
    if len(content) not in sizes:
        text = f"ps {ps} sent {len(content)} bytes; allowed are {sizes_text([sizes])}"
        raise MembershipError(text)


class Client:
    """The calls of one worker.

    Attributes:
      bytes_pushed: of its gradients so far, without headers.
      bytes_pulled: of the parameters that it got, without headers.
    """

    def __init__(
        self,
        config: ConnectConfig,
        shards: Sequence[Shard],
        pull_bits: int,
        configuration: Mapping[str, str],
        log: Callable[[str], None] = lambda line: None,
        stopped: Callable[[], bool] = lambda: False,
        codes: Sequence[ChangeCode | None] = (),
    ) -> None:
        """Sends nothing yet.

        Args:
          config: of this worker; a ps may start later, and be away for the time-out.
          shards: shard of each ps.
          pull_bits: bits of a pulled parameter, 32 or 16.
          configuration: settings that must be equal on all workers.
          log: called with a line when a ps is lost, and when it is back.
          stopped: whether this worker was asked to end; it then does not wait for a ps.
          codes: of the changes of each shard, see `change_codes`; () = parameters are sent as
            floats.
        """
        self._staleness: collections.deque[int] = collections.deque(maxlen=_MAX_UNTAKEN)
        self._hosts, self._timeout_secs = config.worker_hosts, config.timeout_secs
        all_codes = codes or [None] * len(shards)
        self._copies = [
            Copy(shard, pull_bits, code) for shard, code in zip(shards, all_codes, strict=True)
        ]
        self._log, self._stopped = log, stopped
        self._sequence = 0
        self.bytes_pushed = self.bytes_pulled = 0
        incarnation = secrets.randbits(63) + 1
        self._alive = KeepAlive()
        self._servers = [
            RemotePs(config, ps, incarnation, configuration, log, stopped, self._alive)
            for ps in range(len(config.ps_hosts))
        ]
        self._threads = futures.ThreadPoolExecutor(len(self._servers))

    def enter(self, run: str = "") -> list[RunStatus]:
        """Enters at all ps; `run` is the run that this worker was in before, if any.

        Raises:
          MembershipError: a ps cannot be reached, or refuses this worker.
        """
        for server in self._servers:
            server.run = run
        return self._statuses()

    def begin(self, plan: Plan, states: Sequence[bytes], version: int) -> None:
        """Begins a run at all ps with the state of each shard, at a version."""
        # On a new stream, perhaps of a restarted ps, the plan must precede the state.
        enter = lambda entered: Call(act=ENTER)

        def begin_one(ps: int) -> None:
            server = self._servers[ps]
            server.run, reply = plan.run, Reply(waits=True)
            while reply.waits or reply.run != plan.run:
                server.call(Call(act=BEGIN), plan.to_json().encode())
                reply, _ = server.call(Call(act=STATE, version=version), states[ps], again=enter)

        self._on_all(begin_one)

    def await_run(self) -> None:
        """Waits until all ps hold the parameters of one run.

        Raises:
          MembershipError: worker 0 did not begin a run in time, or failed before it did.
        """
        deadline = time.monotonic() + self._timeout_secs
        while True:
            statuses = self.enter()
            runs = {"" if status.waits else status.run for status in statuses}
            if len(runs) == 1 and (run := runs.pop()):
                for server in self._servers:
                    server.run = run
                return
            secs = f"{self._timeout_secs:g} s"
            self._pause(deadline, f"worker 0 did not begin the run within {secs}")

    def pull(self) -> Pulled:
        """Pulls the current parameters."""
        return self._read(self._of_one_run(self._pull_one, self._pull_one))

    def push(self, contents: Sequence[bytes], versions: Sequence[int]) -> Pulled:
        """Pushes a gradient, and pulls new parameters; each ps applies its part at most once.

        Args:
          contents: the part of each ps, see `Shard`.
          versions: version of the parameters of each ps that the gradient was computed with.
        """
        self._sequence += 1
        call = lambda ps: Call(
            act=PUSH,
            sequence=self._sequence,
            version=versions[ps],
            copy=self._copies[ps].number,
        )
        push = lambda ps: self._ask(ps, call(ps), self._copies[ps].sizes, contents[ps])
        self.bytes_pushed += sum(map(len, contents))
        return self._read(self._of_one_run(push, self._pull_one))

    def fetch(self, sizes: Sequence[int], *, last: bool = False) -> tuple[int, list[bytearray]]:
        """Returns the global step, and the state of each ps.

        Args:
          sizes: bytes of each state.
          last: pushes wait until this worker calls `leave`, so that this state is the last.
        """
        fetch = lambda ps: self._ask(ps, Call(act=FETCH, last=last), [exactly(sizes[ps])])
        replies = self._of_one_run(fetch, fetch)
        for ps, (_, content) in enumerate(replies):
            _check_bytes(ps, content, exactly(sizes[ps]))
        return replies[0][0].version, [content for _, content in replies]

    def take_staleness(self) -> list[int]:
        """Returns, in worker 0, the staleness of all updates since this was last called."""
        found = list(self._staleness)
        self._staleness.clear()
        return found

    def await_updates(self, version: int, secs: float) -> bool:
        """Waits up to `secs` until each ps has `version` updates; returns whether each has."""
        deadline = time.monotonic() + secs
        while min(status.version for status in self._statuses()) < version:
            if time.monotonic() > deadline or self._stopped():
                return False
            time.sleep(_POLL_SECS)
        return True

    def leave(
        self, *, done: bool = False, stop: bool = False, saved: bool = False, waits: bool = False
    ) -> bool:
        """Tells the ps that this worker ends; returns whether all of them confirmed it.

        Args:
          done: it ends because the run is finished.
          stop: the other workers must end, too.
          saved: the state of the ps is in a checkpoint.
          waits: wait for ps that are away, and inform them once they are back.
        """
        call = Call(act=BYE, done=done, stop=stop, saved=saved)
        if waits:
            try:
                self._on_all(lambda ps: self._servers[ps].call(call))
                return True
            except MembershipError as error:
                self._log(f"{error}; that ps does not know that the run has ended.")
        else:
            self._on_all(lambda ps: self._servers[ps].leave(call))
        return False

    def cut_silent_calls(self) -> None:
        """Gives up calls in which a ps is silent, because this worker was asked to end."""
        for server in self._servers:
            server.cut_silent_call()

    def close(self) -> None:
        """Ends all streams."""
        for server in self._servers:
            server.close()
        self._alive.stop()
        self._threads.shutdown(wait=False)

    def _statuses(self) -> list[RunStatus]:
        replies = self._on_all(lambda ps: self._servers[ps].enter())
        if why := next((reply.failed for reply in replies if reply.failed), ""):
            raise MembershipError(f"{name_of(0, self._hosts)} failed: {why}")
        return [status_in(reply) for reply in replies]

    def _read(self, replies: Sequence[tuple[Reply, bytearray]]) -> Pulled:
        self.bytes_pulled += sum(len(content) for _, content in replies)
        return _read_pulled(replies, self._copies)

    def _pull_one(self, ps: int) -> tuple[Reply, bytearray]:
        copy = self._copies[ps]
        return self._ask(ps, Call(act=PULL, copy=copy.number), copy.sizes)

    def _ask(
        self, ps: int, call: Call, sizes: Collection[range], content: bytes = b""
    ) -> tuple[Reply, bytearray]:
        """Pushes, pulls or fetches; if the ps has another run by now, only pulls."""
        server = self._servers[ps]
        deadline = time.monotonic() + self._timeout_secs
        pull = lambda entered: Call(act=PULL) if entered.run != server.run else None
        again = pull if call.act == PUSH else lambda entered: None
        while True:
            reply, values = server.call(call, content, sizes, again)
            if not reply.waits:
                server.run = reply.run
                self._staleness.extend(reply.staleness)
                return reply, values
            self._pause(deadline, f"ps {ps} does not hold the parameters of this run")
            server.enter()
            if call.act == PUSH:  # the gradient does not belong to the parameters of the ps
                call, content = Call(act=PULL), b""

    def _of_one_run(
        self,
        ask: Callable[[int], tuple[Reply, bytearray]],
        again: Callable[[int], tuple[Reply, bytearray]],
    ) -> list[tuple[Reply, bytearray]]:
        """Returns the replies of all ps; calls `again` until all replies are of the same run."""
        deadline = time.monotonic() + self._timeout_secs
        replies = self._on_all(ask)
        while len({reply.run for reply, _ in replies}) > 1:
            self._pause(deadline, "the ps hold parameters of different runs")
            replies = self._on_all(again)
        return replies

    def _pause(self, deadline: float, otherwise: str) -> None:
        """Pauses before the next call; raises MembershipError(otherwise) after the deadline."""
        if time.monotonic() > deadline or self._stopped():
            raise MembershipError(otherwise)
        time.sleep(_POLL_SECS)

    def _on_all(self, act: Callable[[int], _T]) -> list[_T]:
        if len(self._servers) == 1:
            return [act(0)]
        return list(self._threads.map(act, range(len(self._servers))))
