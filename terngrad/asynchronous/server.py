"""A ps of asynchronous training: answers each worker's calls, one at a time."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator, Sequence

import grpc
from google.protobuf.message import DecodeError

from terngrad.asynchronous.caller import Caller
from terngrad.asynchronous.plan import PlanError
from terngrad.asynchronous.proposal import CallError
from terngrad.asynchronous.seats import HereAlreadyError, Seats
from terngrad.asynchronous.store import OtherRunError, Store, UnkeptError
from terngrad.asynchronous.updates import GradientError
from terngrad.cluster.channel import name_of
from terngrad.service.gate import Gate, Listener
from terngrad.service.log_limiter import LogLimiter
from terngrad.service.messages import FrameError
from terngrad.service.security import Tls
from terngrad.service.streams import UNKEPT, WELCOME


class Server:
    """The gRPC server of a ps that holds parameters.

    Attributes:
      store: the parameters.
      seats: the connected workers.
    """

    def __init__(
        self,
        ps: int,
        ps_hosts: Sequence[str],
        worker_hosts: Sequence[str],
        store: Store,
        timeout_secs: float,
        tls: Tls | None = None,
        log: LogLimiter | None = None,
        secret: bytes = b"",
    ) -> None:
        """Does not listen yet.

        Args:
          ps: index of this ps in `ps_hosts`.
          ps_hosts: "host:port" of each ps, the same as in the workers.
          worker_hosts: "host:port" of each worker, the same as in the workers.
          store: the parameters; `close` writes a last snapshot of them.
          timeout_secs: a connection counts as lost after this silence; see also `Seats`.
          tls: None = plain text, and any process may connect.
          log: gets lines for the log; None = they are printed.
          secret: that workers must have, too; b"" = none.
        """
        self.store = store
        self.seats = Seats(store, len(worker_hosts), timeout_secs, holds_back=ps == 0)
        self._hosts = worker_hosts
        self._log = log or LogLimiter(print)
        self._gate = Gate(ps, ps_hosts, worker_hosts, self._log, tls, secret=secret)
        self._asked_to_end = False
        methods = {"Update": self._update}
        self._listener = Listener(self._gate, len(worker_hosts), timeout_secs, tls, methods)

    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""
        return self._listener.start(address)

    def wait(self, secs: float) -> bool:
        """Waits up to `secs` for the end of the run; returns whether the run is over.

        See `Seats.is_over`; `stop` also ends the wait.
        """
        deadline = time.monotonic() + secs
        while not self._is_over() and (left := deadline - time.monotonic()) > 0:
            self.seats.wait(left)
            self.store.keep_again()
            self._log.flush()
        return self._is_over()

    def stop(self) -> None:
        """Ends `wait`; only sets a flag, since a signal handler may call it at any time."""
        self._asked_to_end = True

    def close(self) -> None:
        """Ends all streams, then writes a last snapshot."""
        self._listener.close()
        self.store.close()
        self._log.flush(is_end=True)

    def _is_over(self) -> bool:
        return self._asked_to_end or self.seats.is_over

    def _update(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        worker = self._gate.admit(context)
        self.seats.arrive(worker, context)
        context.send_initial_metadata(WELCOME)
        caller = Caller(self.seats, worker, context, requests)
        try:
            yield from caller.replies()
        except HereAlreadyError:
            self._gate.refuse_second(context, worker)
        except OtherRunError:
            if caller.seat.is_pushing:
                self.seats.figures.dropped(worker)
            context.abort(grpc.StatusCode.ABORTED, "another run has begun")
        except UnkeptError as error:
            context.abort(UNKEPT, str(error))
        except (FrameError, PlanError, GradientError, CallError, DecodeError) as error:
            self._gate.refuse(context, f"{name_of(worker, self._hosts)}: {error}")
        except grpc.RpcError:  # the worker has left
            return
        except Exception as error:  # refused for good, since each repeated call would fail again
            with contextlib.suppress(OSError):  # the log's disk is full
                traceback.print_exc()
            self._gate.refuse(context, f"this ps failed: {error!r}")
