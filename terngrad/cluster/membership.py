"""Checks that the processes of a training agree on their settings and are alive.

Before training all processes compare their configuration (flags, layout, parameters); an error
names the first difference. During training the chief and each other process exchange heartbeats
and progress. If a process dies, hangs or becomes unreachable, the others end with its name, even if
they are stuck in an exchange: a separate thread in each process watches and ends that process.

If two processes reach the chief but not each other, all are alive but the training stands still:
`Reachability` finds them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from terngrad.cluster.addresses import Interface, dial, name_of, split_address
from terngrad.cluster.admission import Peer
from terngrad.cluster.errors import DifferenceError, MembershipError, SharedError
from terngrad.cluster.progress import OperationProgress, ProcessProgress, StallDetector, divergence
from terngrad.connect.channel import FrameError
from terngrad.connect.config import ConnectConfig

_LONGEST_CONNECT_SECS = 5.0
_LONGEST_BEAT_SECS = 1.0
_BEATS = 4  # minimum number of heartbeats before a time-out
_LAST_MESSAGE_SECS = 2.0
LOST_STATUS = os.EX_TEMPFAIL  # exit status of a process that ends because of another


class Reachability:
    """Connects to the other processes' ports and measures how long each has not answered."""

    def __init__(
        self,
        addresses: Mapping[int, str],
        timeout_secs: float,
        interface: Interface | None = None,
    ) -> None:
        """Does not connect yet.

        Args:
          addresses: HOST:PORT at which each other process listens, by rank.
          timeout_secs: a process is unreachable after this long without an answer.
          interface: from which to connect; None = any.
        """
        self._addresses, self._interface = addresses, interface
        self._timeout_secs = timeout_secs
        self._call_secs = min(_LONGEST_CONNECT_SECS, timeout_secs / 4)
        self._reached_at: dict[int, float] = {}

    def forget(self) -> None:
        """Drops the times of all earlier answers."""
        self._reached_at.clear()

    def unreachable(self, now: float) -> int | None:
        """Connects to all; returns a process that has not answered for too long, None if all have.

        Args:
          now: seconds, on a clock that stops while this process is stopped.
        """
        for rank, address in self._addresses.items():
            if self._answers(address):
                self._reached_at[rank] = now
            elif now - self._reached_at.setdefault(rank, now) > self._timeout_secs:
                return rank
        return None

    def _answers(self, address: str) -> bool:
        try:
            dial(split_address(address), self._call_secs, self._interface).close()
        except OSError:
            return False
        return True


_shown: list[BaseException] = []
# Held while a traceback is written, so that another thread's last message does not split it.
output_lock = threading.RLock()

Configuration = Mapping[str, str]


def sleep(secs: float) -> float:
    """Sleeps; returns the time afterwards, on a clock that does not stop with this process."""
    time.sleep(secs)
    return time.monotonic()


def end_process(message: str, status: int = 1) -> None:
    """Ends this process at once, even if TensorFlow blocks its main thread or the output is closed.

    With an empty message it says nothing.
    """
    try:
        writer = threading.Thread(target=_say, args=(message,), daemon=True)
        writer.start()
        writer.join(_LAST_MESSAGE_SECS)  # the write blocks forever if nobody reads stderr
    except RuntimeError:  # at the interpreter's end Python 3.12 starts no thread
        _say(message)
    finally:
        os._exit(status)


def end_because_of_another(message: str) -> None:
    """Ends this process as `end_process` does, so that the library's launcher blames another.

    The message is "worker N ends: WHY". If WHY names this worker, the launcher may blame it.
    """
    own, _, why = message.partition(" ends: ")
    end_process(message, 1 if own and own in why else LOST_STATUS)


def with_final_actions(message: str, actions: Iterable[Callable[[], str]]) -> str:
    """Runs actions, such as saving; returns the message and the text that each returned, if any."""
    parts = [message]
    for action in actions:
        try:
            parts.append(action())
        except Exception as error:  # the process must end, whatever it is
            parts.append(f"not saved: {reason_of(error)}")
    return "; ".join(filter(None, parts))


def _say(message: str) -> None:
    has_lock = output_lock.acquire(timeout=_LAST_MESSAGE_SECS / 2)
    with contextlib.suppress(Exception):
        # In one write, because a signal handler may print meanwhile.
        print(f"{message}\n" if message else "", end="", file=sys.stderr, flush=True)
    if has_lock:
        output_lock.release()
    with contextlib.suppress(Exception):
        sys.stdout.flush()


class Membership(contextlib.AbstractContextManager):
    """This process's membership in the training.

    As a context manager it leaves at the end of the block. After an exception it sends the others
    the message.
    """

    def __init__(
        self,
        config: ConnectConfig,
        peers: Mapping[int, Peer],
        *,
        on_loss: Callable[[str], None] = end_process,
        progress: ProcessProgress | None = None,
        addresses: Mapping[int, str] = MappingProxyType({}),
        sleep: Callable[[float], float] = sleep,
    ) -> None:
        """Starts to watch the other processes.

        Args:
          config: of this process. Another is lost after its time-out without a heartbeat, or if
            the others have waited that long for its next batch.
          peers: connections by rank: the chief (0) has one to each other process, and each other
            process has one to the chief.
          on_loss: called once, from a thread, with a message about the lost process.
          progress: progress of this process; None = it reports none.
          addresses: HOST:PORT at which each other process listens in steps, by rank; empty if the
            processes do not connect to each other.
          sleep: sleeps some seconds; returns the time afterwards.
        """
        self._hosts, self._rank, self._peers = config.worker_hosts, config.rank, peers
        self._timeout_secs = timeout_secs = config.timeout_secs
        self._beat_secs = min(_LONGEST_BEAT_SECS, timeout_secs / _BEATS)
        self._on_loss = on_loss
        self._progress = progress or ProcessProgress()
        self._stalls = StallDetector(timeout_secs)
        self._reachability = Reachability(addresses, timeout_secs, config.interface)
        self._clock = 0.0  # seconds of watching, without the time in which this process was stopped
        self._sleep = sleep
        self._changed = threading.Condition()  # when a peer has left, or all is over
        self._over = False
        self._is_leaving = False
        self._is_losing, self._has_lost = threading.Event(), threading.Event()
        for peer in peers.values():
            threading.Thread(target=self._listen, args=(peer,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        if addresses:
            threading.Thread(target=self._connect_to_others, daemon=True).start()

    def agree(self, configuration: Configuration) -> None:
        """Compares a configuration with the chief's; all processes must call this equally often.

        Returns only after all have called it; waits for the others as long as they live.

        Raises:
          DifferenceError: names the process, the setting, and both values; all leave each other.
          MembershipError: names the process that left.
        """
        if self._rank:
            chief = self._peers[0]
            chief.send({"configuration": dict(configuration)})
            verdict = self._answer(chief)["verdict"]
        else:
            verdict = self._compare(configuration)
            self._send_to_all({"verdict": verdict})
        if verdict:
            self._leave(self._bye())
            raise DifferenceError(verdict)

    def await_loss(self) -> None:
        """After a failed operation between processes: waits until the lost process is found.

        Returns after the time-out if all processes seem alive, or after `on_loss`, which may take
        long, if it does not end this process.
        """
        if self._is_losing.wait(self._timeout_secs + 2 * self._beat_secs):
            self._has_lost.wait()

    def __exit__(self, kind, error, traceback) -> None:
        """Tells the others that this process ends, and why."""
        # SystemExit is no failure: workers exit only together, at the end or when all were stopped.
        if error is None or isinstance(error, SystemExit):
            self._leave(self._bye())
        else:
            self._leave({"failed": reason_of(error), "shared": isinstance(error, SharedError)})

    def _compare(self, configuration: Configuration) -> str:
        all_configurations = {
            rank: self._answer(peer)["configuration"] for rank, peer in self._peers.items()
        }
        try:
            compare({0: configuration} | all_configurations, self._hosts)
        except DifferenceError as error:
            return str(error)
        return ""

    def _answer(self, peer: Peer) -> dict:
        if (answer := peer.answers.get()) is None:
            peer.answers.put(None)  # the next call must not wait for ever
            raise MembershipError(f"{self._name(peer.rank)} left before all workers had agreed")
        return answer

    def _listen(self, peer: Peer) -> None:
        while (message := self._receive(peer)) is not None:
            peer.received_at = self._clock
            if "beat" in message:
                peer.batches = message["beat"]
                if not peer.is_leaving:  # a beat may be older than the last operation
                    peer.operations = OperationProgress.read(message.get("operations"))
            elif "failed" in message:
                blame = "" if message.get("shared") else f"{self._name(peer.rank)} failed: "
                self._lose(f"{blame}{message['failed']}")
            elif "lost" in message:
                self._lose(self._from_others(message["lost"]))
            elif "leaving" in message:
                peer.operations = OperationProgress(message.get("operations", 0))
                peer.is_leaving = True
                peer.answers.put(None)
            elif "bye" in message:
                peer.operations = OperationProgress(message.get("operations", 0))
                with self._changed:
                    peer.left = peer.is_leaving = True
                    self._changed.notify_all()
                peer.answers.put(None)
            else:
                peer.answers.put(message)
        if not peer.left:
            self._lose(self._how_lost(peer))

    def _how_lost(self, peer: Peer) -> str:
        name = self._name(peer.rank)
        if peer.channel.changed:
            return peer.channel.changed.between(self._name(self._rank), name)
        if peer.channel.fault:
            return f"{name} broke its connection: {peer.channel.fault}"
        return f"{name} died: its connection closed"

    def _from_others(self, text: str) -> str:
        is_about_this = text.startswith(self._name(self._rank))
        return f"the others found: {text}" if is_about_this else text

    def _receive(self, peer: Peer) -> dict | None:
        try:
            return peer.receive()
        except FrameError:
            return None

    def _watch(self) -> None:
        last = self._sleep(0.0)
        while not self._over:
            now = self._sleep(self._beat_secs)
            # While this process was stopped, or got no CPU time, it could not receive either.
            self._clock += min(now - last, 2 * self._beat_secs)
            last = now
            self._send_to_all(
                {"beat": self._progress.batches, "operations": self._progress.operations}
            )
            if loss := self._silent() or self._gone() or self._diverged() or self._behind():
                self._lose(loss)

    def _silent(self) -> str:
        for rank, peer in self._peers.items():
            silent = self._clock - peer.received_at
            if not peer.left and silent > self._timeout_secs:
                return f"{self._name(rank)} hangs: it sent nothing for {silent:.0f} s"
        return ""

    def _gone(self) -> str:
        count = self._progress.operations.count
        for rank, peer in self._peers.items():
            done = peer.operations.count
            if peer.is_leaving and done < count:
                return (
                    f"{self._name(rank)} left after {done} operations with the others, "
                    f"of which this one has begun {count}: all need equally many batches and calls"
                )
        return ""

    def _diverged(self) -> str:
        here = {rank: peer.operations for rank, peer in self._peers.items() if not peer.is_leaving}
        return divergence(here | {self._rank: self._progress.operations}, self._name)

    def _bye(self) -> dict:
        return {"bye": True, "operations": self._progress.operations.count}

    def _behind(self) -> str:
        if self._rank:  # only the chief knows the progress of all
            return ""
        self._stalls.note(0, self._progress.batches, self._clock, self._progress.operations.count)
        for rank, peer in self._peers.items():
            self._stalls.note(rank, peer.batches, self._clock, peer.operations.count)
        if self._stalls.should_give_up(self._clock):
            return f"no worker made a step for {self._stalls.give_up_secs:g} s"
        if not (late := self._stalls.late(self._clock)):
            return ""
        names = ", ".join(self._name(rank) for rank in late)
        return f"{names}: no next batch for {self._timeout_secs:g} s while the others wait"

    def _connect_to_others(self) -> None:
        while not self._over:
            self._sleep(self._timeout_secs / _BEATS)
            if self._progress.batches is None:  # the others may not listen yet, or any more
                self._reachability.forget()
            elif (rank := self._reachability.unreachable(self._clock)) is not None:
                self._lose(f"{self._name(rank)} cannot be reached from {self._name(self._rank)}")

    def _lose(self, text: str) -> None:
        with self._changed:
            if self._over:
                return
            self._over = True
            self._changed.notify_all()
            self._is_losing.set()
        self._send_to_all({"lost": text})  # the chief passes it on
        said = f"{self._name(self._rank)} ends: {text}"
        try:
            if self._is_leaving and f"{self._name(self._rank)} left" in text:
                _say(said)  # its program has chosen the exit status
            else:
                self._on_loss(said)
        finally:
            self._has_lost.set()
        for peer in self._peers.values():
            peer.answers.put(None)

    def _leave(self, message: dict) -> None:
        """Sends the last message; the chief, which relays messages, waits for the others first."""
        if "bye" in message and self._rank == 0:
            self._is_leaving = True
            self._send_to_all({"leaving": True, "operations": self._progress.operations.count})
            is_over = lambda: self._over or all(peer.left for peer in self._peers.values())
            with self._changed:
                self._changed.wait_for(is_over, self._timeout_secs)
        with self._changed:
            self._over = True
        self._send_to_all(message)
        for peer in self._peers.values():
            peer.left = True
            peer.channel.end()

    def _send_to_all(self, message: dict) -> None:
        for peer in self._peers.values():
            peer.send(message)

    def _name(self, rank: int) -> str:
        return name_of(rank, self._hosts)


def compare(configuration: Mapping[int, Configuration], hosts: Sequence[str]) -> None:
    """Compares the configuration of each process with that of the first.

    Raises:
      DifferenceError: names the process, the setting, and both values.
    """
    first, *others = sorted(configuration)
    for rank in others:
        names = name_of(first, hosts), name_of(rank, hosts)
        if text := difference(configuration[first], configuration[rank], *names):
            raise DifferenceError(text)


def difference(mine: Configuration, theirs: Configuration, my_name: str, their_name: str) -> str:
    """Returns the first setting that differs between two processes, and how; "" if none does."""
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(name, "nothing"), theirs.get(name, "nothing")
        if here != there:
            return f"{name} is {there} on {their_name} and {here} on {my_name}"
    return ""


def note_shown(error: BaseException) -> None:
    """Notes that the program has shown the error that ends it, perhaps in its own way."""
    _shown[:] = [error]


def was_shown(error: BaseException) -> bool:
    """Returns whether it is certain that the program has shown an error."""
    return any(error is shown for shown in _shown)


def reason_of(error: BaseException) -> str:
    """Returns one line that says why a process ends."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by SIGINT"
    return " ".join(str(error).split()) or type(error).__name__
