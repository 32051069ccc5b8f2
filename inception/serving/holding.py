"""A ps that holds the parameters: --cross_replica_sync=False."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO

from inception.flags.cluster import ClusterConfig
from inception.flags.table import refuse
from inception.results.ps_report import Told, holding_told
from inception.serving.kind import Ps
from inception.serving.process import say
from inception.training.folders import hold_alone
from inception.training.learning_rate import read_schedule
from terngrad.asynchronous.keeping import Keeping
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.store import Store
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.service.calls import ps_name
from terngrad.service.log_limiter import LogLimiter
from terngrad.service.security import Tls

_LOOK_SECS = 1.0  # between looks at whether a report is due


class HoldingPs(Ps):
    """See module."""

    use_of_kernels = "read"

    def __init__(
        self,
        cluster: ClusterConfig,
        folder: str,
        kernels: GradientKernels,
        tls: Tls | None,
        secret: bytes,
    ) -> None:
        """Does not listen yet; writes snapshots to `folder`.

        Raises:
          ValueError: the folder is not writable, or another ps writes to it.
        """
        ps, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
        self._name = ps_name(ps, hosts)
        keeping = Keeping(folder, cluster.ps_snapshot_steps, cluster.ps_snapshot)
        self._lock = _hold_folder(folder) if keeping.steps else None
        log = LogLimiter(say)
        tell = lambda text: log(f"{self._name}: {text}")
        try:
            store = Store(ps, len(hosts), workers, kernels, read_schedule, keeping, tell)
        except (LookupError, OSError) as error:
            raise refuse("ps_snapshot", cluster.ps_snapshot, f"in {folder} {error}") from None
        self._server = Server(
            ps, hosts, workers, store, cluster.worker_timeout_secs, tls, log, secret
        )
        self._left = 0
        self.task = f"holds the parameters of {len(workers)} workers"

    def start(self, address: str) -> int:
        """See base class."""
        return self._server.start(address)

    def stop(self) -> None:
        """See base class."""
        self._server.stop()

    def wait(self, beat: Callable[[], None]) -> None:
        """See base class."""
        while not self._server.wait(_LOOK_SECS):
            beat()

    def told(self) -> Told | None:
        """See base class."""
        return holding_told(self._server)

    def close(self) -> None:
        """See base class."""
        self._left = len(self._server.seats.present)
        self._server.close()
        if self._lock:
            self._lock.close()

    def tell_end(self, signals: Sequence[signal.Signals]) -> None:
        """See base class."""
        if why := self._server.seats.failure:
            raise ValueError(f"{self._name} ends: worker 0 failed: {why}")
        at = f"at step {self._server.store.version}"
        if signals and self._left:
            print(f"{signals[0].name}: {self._name} left {self._left} workers {at}.", flush=True)
            sys.exit(128 + signals[0])
        why = signals[0].name if signals else self._server.seats.why_over
        print(f"{self._name} ends {at}: {why}.", flush=True)


def _hold_folder(folder: str) -> IO[str]:
    """Locks the folder of the snapshots, since another ps would remove them."""
    try:
        os.makedirs(folder, exist_ok=True)
        return hold_alone(folder, "ps")
    except OSError as error:
        reason = f"snapshots cannot be written there ({error.strerror})"
        why = f"{reason}; --ps_snapshot_steps=0 turns them off"
        raise refuse("train_dir", os.path.dirname(folder), why) from None
