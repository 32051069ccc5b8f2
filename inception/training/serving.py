"""A ps: --job_name=ps of the *_distributed_train programs."""

import functools
import os

from inception.cluster.joining import join_config, log_hosts
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.results.ps_report import PsReport, Server, figures_of_parameters, figures_of_sums
from inception.training.learning_rate import read_schedule
from terngrad.connect.calling import ps_name
from terngrad.library import serving
from terngrad.library.serving import Asynchronous
from terngrad.training import runtime

_REPORT_SECS = 30.0


def serve(config: TrainConfig, cluster: ClusterConfig) -> None:
    """Serves until the workers need no ps any more, or a signal arrives; see `serving.serve`."""
    log_hosts(cluster)
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
    )
    folder = os.path.join(config.train_dir, f"ps_{cluster.task_id}")
    asynchronous = None
    if not cluster.cross_replica_sync:
        steps, chosen = cluster.ps_snapshot_steps, cluster.ps_snapshot
        asynchronous = Asynchronous(read_schedule, config.train_dir, steps, chosen)

    def make_report(server: Server) -> PsReport:
        name = ps_name(cluster.task_id, cluster.ps_hosts)
        directory = folder if config.save_summaries_secs else None
        if asynchronous:
            figures = functools.partial(figures_of_parameters, server)
        else:
            figures = functools.partial(figures_of_sums, server, cluster.worker_hosts)
        return PsReport(figures, name, _REPORT_SECS, directory, serving.say)

    serving.serve(join_config(cluster), asynchronous, make_report)
