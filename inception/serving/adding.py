"""A ps that adds what workers push at each step."""

import signal
import sys
from collections.abc import Callable, Sequence

from inception.flags.cluster import ClusterConfig
from inception.results.ps_report import Told, adding_told
from inception.serving.kind import Ps
from inception.serving.process import say
from terngrad.cluster.channel import split_address
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.service import memory
from terngrad.service.calls import ps_name
from terngrad.service.security import Tls


class AddingPs(Ps):
    """See module."""

    use_of_kernels = "added"

    def __init__(
        self, cluster: ClusterConfig, kernels: GradientKernels, tls: Tls | None, secret: bytes
    ) -> None:
        """Does not listen yet."""
        rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
        ps, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
        here = [host for host in hosts if split_address(host)[0] == split_address(hosts[ps])[0]]
        most_bytes = memory.most_held() // len(here)
        reduction = Reduction(kernels.packing)
        self._server = Server(ps, hosts, workers, reduction, rules, tls, say, most_bytes, secret)
        self._name, self._workers = ps_name(ps, hosts), workers
        self._outcome: str | None = None  # see `Server.wait`
        self._left = 0
        self.task = f"waits for {len(workers)} workers"

    def start(self, address: str) -> int:
        """See base class."""
        return self._server.start(address)

    def stop(self) -> None:
        """See base class."""
        self._server.stop()

    def wait(self, beat: Callable[[], None]) -> None:
        """See base class; also returns if a worker is lost for good."""
        self._outcome = self._server.wait(beat)

    def told(self) -> Told | None:
        """See base class."""
        return adding_told(self._server, self._workers)

    def close(self) -> None:
        """See base class."""
        self._left = self._server.attendance.present
        self._server.close()

    def tell_end(self, signals: Sequence[signal.Signals]) -> None:
        """See base class."""
        if self._outcome:
            raise ValueError(f"{self._name} ends: {self._outcome}")
        if self._outcome is None and self._left:
            print(f"{signals[0].name}: {self._name} left {self._left} workers.", flush=True)
            sys.exit(128 + signals[0])
        why = signals[0].name if self._outcome is None else "all workers are done"
        print(f"{self._name} ends: {why}.", flush=True)
