"""A ps that holds the parameters: --job_name=ps with --cross_replica_sync=False."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from inception import ps, runtime
from inception.cluster_config import ClusterConfig
from inception.flag_table import refuse
from inception.flags import TrainConfig
from inception.schedule_text import read_schedule
from terngrad.exchange.parameter_server.asynchronous.server import Server
from terngrad.exchange.parameter_server.asynchronous.store import Keeping, Store
from terngrad.exchange.parameter_server.calls import ps_name
from terngrad.ops.choice import choose_kernels

_REPORT_SECS = 30.0


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until the run is finished, or a signal comes.

    Raises:
      ValueError: names a flag that cannot be honoured.
      SystemExit: with the signal's status, if it came before the run was finished.
    """
    ps.tell_hosts(cluster)
    tls = ps.security(cluster)
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=False,
    )
    wanted, path = os.environ.get("TERNGRAD_KERNELS", ""), os.environ.get("TERNGRAD_SIMD", "")
    kernels, why_reference = choose_kernels(wanted, path)
    index, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
    name = ps_name(index, hosts)
    tell = lambda text: print(f"{name}: {text}", flush=True)
    keeping = Keeping(os.path.join(config.train_dir, f"ps_{index}"), cluster.ps_snapshot_steps)
    _check_folder(keeping, config)
    store = Store(index, len(hosts), workers, kernels, read_schedule, keeping, tell)
    server = Server(index, hosts, workers, store, cluster.worker_timeout_secs, tls)
    with ps.stopped_by_signals(server.stop) as signals:
        who = ps.listen(server, cluster, tls)
        print(f"{name} holds the parameters of {len(workers)} workers {who}.", flush=True)
        why = f", because {why_reference}" if why_reference else ""
        print(f"Codes are read by {kernels.title}{why}.", flush=True)
        _watch(server, tell)
        present = server.present
        server.close()
    _tell_end(name, store.version, present, signals)


def _check_folder(keeping: Keeping, config: TrainConfig) -> None:
    if not keeping.steps:
        return
    try:
        os.makedirs(keeping.folder, exist_ok=True)
    except OSError as error:
        why = f"no snapshots can be written there: {error.strerror}; --ps_snapshot_steps=0: none"
        raise refuse("train_dir", config.train_dir, why) from None


def _watch(server: Server, tell: Callable[[str], None]) -> None:
    """Logs what happens until the run is over."""
    version, since = server.store.version, time.monotonic()
    is_over = False
    while not is_over:
        is_over = server.wait(_REPORT_SECS)
        now = time.monotonic()
        if server.store.version != version:
            rate = max(0, server.store.version - version) / (now - since)
            traffic = _traffic(server.bytes_in, server.bytes_out)
            staleness = server.store.take_staleness()
            tell(
                f"step {server.store.version} ({rate:.1f} updates/sec), staleness mean "
                f"{staleness.mean:.2f} max {staleness.largest}; {traffic}"
            )
        version, since = server.store.version, now


def _traffic(bytes_in: Sequence[int], bytes_out: Sequence[int]) -> str:
    """Megabytes by worker since the start."""
    pairs = enumerate(zip(bytes_in, bytes_out, strict=True))
    each = [f"worker {i}: {a / 1e6:.1f} MB in, {b / 1e6:.1f} MB out" for i, (a, b) in pairs]
    return "; ".join(each)


def _tell_end(name: str, version: int, present: list[int], signals: list[signal.Signals]) -> None:
    if signals and present:
        print(
            f"{signals[0].name}: {name} left {len(present)} workers at step {version}.", flush=True
        )
        sys.exit(128 + signals[0])
    why = "the run has come to its end" if not signals else signals[0].name
    print(f"{name} ends at step {version}: {why}.", flush=True)
