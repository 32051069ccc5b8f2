"""A ps that holds the parameters: --job_name=ps with --cross_replica_sync=False."""

import contextlib
import os
import signal
import sys

from inception.cluster.network import listen, security, tell_hosts
from inception.cluster.ps_process import REPORT_SECS, say, stopped_by_signals
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from inception.results.asynchronous_report import AsynchronousReport
from inception.training import runtime
from inception.training.folders import hold_alone
from inception.training.learning_rate import read_schedule
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.store import Keeping, Store
from terngrad.service.calls import ps_name


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until the run is finished, or a signal comes.

    Raises:
      ValueError: names a flag that cannot be honoured.
      SystemExit: with the signal's status, if it came while workers were here.
    """
    tell_hosts(cluster)
    tls = security(cluster)
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=False,
    )
    chosen = runtime.kernels()
    index, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
    name = ps_name(index, hosts)
    tell = lambda text: say(f"{name}: {text}")
    folder = os.path.join(config.train_dir, f"ps_{index}")
    keeping = Keeping(folder, cluster.ps_snapshot_steps)
    with contextlib.ExitStack() as stack:
        _hold_folder(keeping, config, stack)
        store = Store(index, len(hosts), workers, chosen.kernels, read_schedule, keeping, tell)
        server = Server(index, hosts, workers, store, cluster.worker_timeout_secs, tls)
        signals = stack.enter_context(stopped_by_signals(server.stop))
        who = listen(server.start, cluster, tls)
        say(f"{name} holds the parameters of {len(workers)} workers {who}.")
        say(f"Codes are read by {chosen}.")
        report = AsynchronousReport(server, tell, folder if config.save_summaries_secs else None)
        while not server.wait(REPORT_SECS):
            report.report()
        present = server.present
        server.close()
        report.report()
    _tell_end(name, server, present, signals)


def _hold_folder(keeping: Keeping, config: TrainConfig, stack: contextlib.ExitStack) -> None:
    """Another ps would remove this one's snapshots."""
    if not keeping.steps:
        return
    try:
        os.makedirs(keeping.folder, exist_ok=True)
        stack.callback(hold_alone(keeping.folder, "ps").close)
    except OSError as error:
        why = f"no snapshots can be written there: {error.strerror}; --ps_snapshot_steps=0: none"
        raise refuse("train_dir", config.train_dir, why) from None


def _tell_end(name: str, server: Server, present: list[int], signals: list[signal.Signals]) -> None:
    version = server.store.version
    if signals and present:
        print(
            f"{signals[0].name}: {name} left {len(present)} workers at step {version}.", flush=True
        )
        sys.exit(128 + signals[0])
    why = signals[0].name if signals else server.why_over
    print(f"{name} ends at step {version}: {why}.", flush=True)
