"""A ps that adds what workers push: --job_name=ps of the *_distributed_train programs."""

import os
import signal
import sys

from inception.cluster.network import listen, security, tell_hosts
from inception.cluster.ps_process import REPORT_SECS, say, stopped_by_signals
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.results.ps_report import PsReport
from inception.training import runtime
from terngrad.cluster.channel import split_address
from terngrad.exchange.parameter_server.coordination.coordinator import Rules
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.service import memory
from terngrad.service.calls import ps_name


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until all workers have ended, or one was lost for good, or a signal comes.

    Raises:
      ValueError: names the worker that was lost, or a flag that cannot be honoured.
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
    memory.keep_freed()
    chosen = runtime.kernels()
    rules = Rules(cluster.aggregated, cluster.elastic, cluster.worker_timeout_secs)
    ps, hosts, workers = cluster.task_id, cluster.ps_hosts, cluster.worker_hosts
    reduce = Reduction(chosen.kernels).reduce
    here = [host for host in hosts if split_address(host)[0] == split_address(hosts[ps])[0]]
    most_bytes = memory.most_held() // len(here)
    server = Server(ps, hosts, workers, reduce, rules, tls, say, most_bytes)
    name = ps_name(ps, hosts)
    with stopped_by_signals(server.stop) as signals:
        who = listen(server.start, cluster, tls)
        say(f"{name} waits for {len(workers)} workers {who}.")
        say(f"Codes are added by {chosen}.")
        folder = os.path.join(config.train_dir, f"ps_{ps}") if config.save_summaries_secs else None
        report = PsReport(server, name, workers, REPORT_SECS, folder, say)
        outcome = server.wait(report.beat)
        report.report()
        left = server.attendance.present
        server.close()
    _tell_end(name, outcome, left, signals)


def _tell_end(name: str, outcome: str | None, left: int, signals: list[signal.Signals]) -> None:
    if outcome:
        raise ValueError(f"{name} ends: {outcome}")
    if outcome is None and left:
        print(f"{signals[0].name}: {name} left {left} workers.", flush=True)
        sys.exit(128 + signals[0])
    why = "all workers are done" if outcome is not None else signals[0].name
    print(f"{name} ends: {why}.", flush=True)
