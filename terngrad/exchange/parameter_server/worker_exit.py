"""How a worker of parameter servers leaves the others."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from terngrad.cluster.errors import FinishedError, SharedError
from terngrad.cluster.membership import end_process, reason_of, was_shown
from terngrad.cluster.progress import GIVE_UP_TIME_OUTS, ProcessProgress
from terngrad.exchange.parameter_server.worker.client import Client

_POLL_SECS = 1.0


class LeaveTrainingError(SystemExit):
    """Ends this worker; the others continue without it."""


class WorkerExit:
    """Ends this worker, and tells the ps and the others why."""

    def __init__(
        self,
        client: Client,
        name: str,
        progress: ProcessProgress,
        timeout_secs: float,
        end: Callable[[str], None] = end_process,
    ) -> None:
        """Calls `end` with a message where another process was lost."""
        self._client, self._name, self._end_process = client, name, end
        self._progress, self._timeout_secs = progress, timeout_secs

    @contextlib.contextmanager
    def at_the_end_of_the_block(self) -> Iterator[None]:
        """Leaves the others in order if the block succeeds; else they learn the reason."""
        client, why, is_done = self._client, "", True
        try:
            client.watch(self._end_soon)
            yield
            client.coordination.leave()
        except LeaveTrainingError:
            is_done = False
            client.coordination.leave_others()
            raise
        except SystemExit:  # all workers were stopped, and have saved
            client.coordination.leave()
            raise
        except FinishedError as error:
            client.coordination.leave()
            print(f"{self._name}: {error}.", flush=True)
            sys.exit(0)
        except BaseException as error:
            why = reason_of(error)
            if client.failure:
                says_all = was_shown(error) and reason_of(ValueError(client.failure)) in why
                self._end(client.failure, "" if says_all else why)
            client.coordination.fail(why, is_shared=isinstance(error, SharedError))
            raise
        finally:
            client.close(is_done=is_done, why=why)

    def _end(self, why: str, said: str) -> None:
        self._client.close(is_done=True, why=why)
        self._end_process(f"{self._name} ends: {said}" if said else "")

    def _end_soon(self, why: str) -> None:
        """Lets the main thread save the steps made so far, unless it hangs."""
        threading.Thread(target=self._end_if_it_hangs, args=(why,), daemon=True).start()

    def _end_if_it_hangs(self, why: str) -> None:
        """Ends this process if the main thread is within steps for longer than the time-out."""
        limit = self._timeout_secs
        now = began = stepping_since = time.monotonic()
        while now - stepping_since < limit and now - began < GIVE_UP_TIME_OUTS * limit:
            time.sleep(min(_POLL_SECS, limit / 4))
            now = time.monotonic()
            if self._progress.batches is None:  # it may be saving, which takes as long as it takes
                stepping_since = now
        self._end(why, why)
