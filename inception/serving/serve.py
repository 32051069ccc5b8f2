"""A ps: --job_name=ps of the *_distributed_train programs."""

import os

from inception.cluster.network import listen, security, tell_hosts
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.results.ps_report import PsReport
from inception.serving.adding import AddingPs
from inception.serving.holding import HoldingPs
from inception.serving.process import say, stopped_by_signals
from terngrad.cluster import run_secret
from terngrad.service.calls import ps_name
from terngrad.training import runtime

_REPORT_SECS = 30.0


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until the workers need no ps any more, or a signal arrives.

    Raises:
      ValueError: a worker was lost, or a flag's value is not possible here.
      SystemExit: with the signal's status, if it arrived while workers were connected.
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
    name = ps_name(cluster.task_id, cluster.ps_hosts)
    folder = os.path.join(config.train_dir, f"ps_{cluster.task_id}")
    if cluster.cross_replica_sync:
        ps = AddingPs(cluster, chosen.kernels, tls, run_secret.shared())
    else:
        ps = HoldingPs(cluster, folder, chosen.kernels, tls, run_secret.shared())
    directory = folder if config.save_summaries_secs else None
    with stopped_by_signals(ps.stop) as signals:
        who = listen(ps.start, cluster, tls)
        say(f"{name} {ps.task} {who}.")
        say(f"Codes are {ps.use_of_kernels} by {chosen}.")
        report = PsReport(ps.told, name, _REPORT_SECS, directory, say)
        ps.wait(report.beat)
        report.report()
        ps.close()
    ps.tell_end(signals)
