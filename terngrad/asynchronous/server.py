"""A ps of asynchronous training: answers each worker's calls, one at a time."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.message import DecodeError

from terngrad.asynchronous.caller import Caller
from terngrad.asynchronous.plan import PlanError
from terngrad.asynchronous.proposal import CallError
from terngrad.asynchronous.store import OtherRunError, Store, UnkeptError
from terngrad.asynchronous.updates import GradientError
from terngrad.asynchronous.workers import HereAlreadyError, Workers
from terngrad.cluster.channel import name_of
from terngrad.connect.channel import Channel, End, Ending, FrameError
from terngrad.connect.config import ConnectConfig
from terngrad.connect.log_limiter import LogLimiter
from terngrad.connect.streams import Streams
from terngrad.service.messages import LONGEST_PUSH

_STREAM_THREADS = 2  # one reads, one answers
_LOOK_SECS = 0.5
_MOST_READ = 4  # messages of a worker that are read before they are answered


class Server:
    """Serves the workers of a ps that holds parameters.

    Attributes:
      store: the parameters.
      workers: the connected ones.
    """

    def __init__(self, config: ConnectConfig, store: Store, log: LogLimiter | None = None) -> None:
        """Does not listen yet.

        Args:
          config: of this ps.
          store: the parameters; `close` writes a last snapshot of them.
          log: gets lines for the log; None = they are printed.
        """
        self.store = store
        self._hosts = hosts = config.worker_hosts
        self.workers = Workers(store, len(hosts), config.timeout_secs, holds_back=config.rank == 0)
        self._log = log or LogLimiter(print)
        self._asked_to_end = False
        self._streams = Streams(
            config,
            {"Update": self._update},
            self._log,
            longest=LONGEST_PUSH,
            threads=_STREAM_THREADS,
        )

    def start(self, address: str, *, only_here: bool = False) -> int:
        """Listens at "host:port"; see `Streams.start`."""
        return self._streams.start(address, only_here=only_here)

    def wait(self, secs: float) -> bool:
        """Waits up to `secs` for the end of the run; returns whether the run is over.

        See `Workers.is_over`; `stop` also ends the wait.
        """
        deadline = time.monotonic() + secs
        while not self._is_over() and (left := deadline - time.monotonic()) > 0:
            self.workers.wait(left)
            self.store.keep_again()
            self._log.flush()
        return self._is_over()

    def stop(self) -> None:
        """Ends `wait`; only sets a flag, since a signal handler may call it at any time."""
        self._asked_to_end = True

    def close(self) -> None:
        """Ends all streams, then writes a last snapshot."""
        self._streams.close()
        self.store.close()
        self._log.flush(is_end=True)

    def _is_over(self) -> bool:
        return self._asked_to_end or self.workers.is_over

    def _update(self, worker: int, channel: Channel) -> Sequence[Callable[[], None]]:
        """See `Open`."""
        self.workers.arrive(worker, channel)
        caller, requests = Caller(self.workers, worker, channel), _Requests()

        def answer() -> None:
            ending = self._answer(caller, channel, requests)
            requests.close()
            channel.finish(ending)

        return [lambda: self._read(caller, channel, requests), answer]

    def _read(self, caller: Caller, channel: Channel, requests: _Requests) -> None:
        """Reads a worker's messages, also while it waits for an answer; notes when it leaves."""
        last = None
        try:
            for message in channel:
                requests.put(message)
        except FrameError as error:
            last = error
        finally:
            self.workers.leave(caller.stream)
            requests.put(last)

    def _answer(self, caller: Caller, channel: Channel, requests: _Requests) -> Ending:
        """Answers a worker's calls; returns why it does so no more."""
        worker = caller.stream.worker
        refuse = functools.partial(self._refuse, channel)
        try:
            for frame in caller.replies(iter(requests)):
                channel.send(frame)
        except HereAlreadyError:
            return Ending(End.ENDED, str(self._streams.refuse_second(worker)))
        except OtherRunError:
            if caller.stream.is_pushing:
                self.workers.figures.dropped(worker)
            return Ending(End.ENDED, "another run has begun")
        except UnkeptError as error:
            return Ending(End.UNKEPT, str(error))
        except (FrameError, PlanError, GradientError, CallError, DecodeError) as error:
            return refuse(f"{name_of(worker, self._hosts)}: {error}")
        except OSError:  # the worker has left
            pass
        except Exception as error:  # refused for good, since each repeated call would fail again
            with contextlib.suppress(OSError):  # the log's disk is full
                traceback.print_exc()
            return refuse(f"this ps failed: {error!r}")
        return Ending(End.DONE)

    def _refuse(self, channel: Channel, why: str) -> Ending:
        return Ending(End.REFUSED, self._streams.complain(channel, why))


class _Requests:
    """What was read of a worker and is not answered yet; one thread puts, and another iterates."""

    def __init__(self) -> None:
        self._queue: queue.Queue[memoryview | FrameError | None] = queue.Queue(_MOST_READ)
        self._over = threading.Event()

    def put(self, message: memoryview | FrameError | None) -> None:
        """Waits for room. None says that nothing follows; an error, why nothing does."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(message, timeout=_LOOK_SECS)
                return

    def close(self) -> None:
        """Lets nobody wait for room any more."""
        self._over.set()

    def __iter__(self) -> Iterator[memoryview]:
        """Yields messages; raises the error that ended them."""
        while (message := self._queue.get()) is not None:
            if isinstance(message, FrameError):
                raise message
            yield message
