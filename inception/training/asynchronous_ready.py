"""What a worker of asynchronous training builds before it calls a ps."""

import dataclasses
import json
import secrets
from collections.abc import Sequence

from inception.cluster.join import Workers
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import preparation, runtime, settings
from inception.training.build import Training, build_training
from inception.training.problem import Problem, resolve
from inception.training.schedule_text import write_schedule
from slim.datasets.dataset_factory import Dataset
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.space import Share, make_shares
from terngrad.codecs.factory import largest_code
from terngrad.layout import Layout


@dataclasses.dataclass(frozen=True)
class Ready:
    """A worker that has built its net.

    Attributes:
      config, cluster, goal, dataset: what is trained, and by whom.
      steps_per_epoch: updates in which all workers see as many images as there are.
      training: net, codecs and the variables of a checkpoint.
      shares: what each ps holds.
      plan: of the run that this worker would begin.
      settings: what checkpoints note.
      workers: which of them this one is.
      devices: its towers.
    """

    config: TrainConfig
    cluster: ClusterConfig
    goal: Problem
    dataset: Dataset | None
    steps_per_epoch: float
    training: Training
    shares: list[Share]
    plan: Plan
    settings: str
    workers: Workers
    devices: Sequence[str]


def prepare(config: TrainConfig, cluster: ClusterConfig) -> Ready:
    """Builds the net of a worker.

    Raises:
      ValueError: data and net do not fit each other.
    """
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=config.log_device_placement,
    )
    devices = runtime.towers(config.num_gpus, on_cpu=config.clone_on_cpu)
    goal = resolve(config)
    dataset = None if config.benchmark_mode else preparation.open_dataset(config)
    workers = Workers(cluster.task_id, len(cluster.worker_hosts), cluster.split_data)
    examples = dataset.num_examples if dataset else preparation.SYNTHETIC_EXAMPLES
    if dataset and not cluster.split_data:
        examples *= workers.size  # each worker has as many
    steps_per_epoch = examples / config.batch_size
    training = build_training(config, goal, steps_per_epoch, devices)
    state = training.classifier.state.values()
    statistics = sum(v.shape.num_elements() for v in state)
    ps_count, max_code = len(cluster.ps_hosts), largest_code(training.runner.codecs)
    shares = make_shares(training.layout, ps_count, config.nodes, statistics, max_code)
    own = {"cross_replica_sync": False, "max_staleness": cluster.max_staleness}
    own["pull_bits"] = cluster.pull_bits
    noted = json.loads(settings.describe(config, dataset, workers.size, 1)) | own
    facts = settings.facts(config, workers.size)
    facts |= settings.data_facts(dataset, cluster.split_data)
    facts |= {name: json.dumps(value) for name, value in own.items()}
    facts["layout"] = training.layout.fingerprint().hex()
    facts["kernels"] = training.kernel_choice.kernels.family
    return Ready(
        config,
        cluster,
        goal,
        dataset,
        steps_per_epoch,
        training,
        shares,
        _plan(config, cluster, training.layout, statistics, steps_per_epoch, facts, max_code),
        json.dumps(noted, sort_keys=True),
        workers,
        devices,
    )


def _plan(
    config: TrainConfig,
    cluster: ClusterConfig,
    layout: Layout,
    statistics: int,
    steps_per_epoch: float,
    facts: dict[str, str],
    max_code: int,
) -> Plan:
    return Plan(
        run=secrets.token_hex(8),
        names=layout.names,
        shapes=layout.shapes,
        policy=layout.policy,
        bucket_elements=config.bucket_elements,
        statistics=statistics,
        nodes=config.nodes,
        optimizer=config.optimizer,
        momentum=config.momentum,
        averages_decay=config.moving_average_decay,
        max_steps=config.max_steps,
        max_staleness=cluster.max_staleness,
        pull_bits=cluster.pull_bits,
        schedule=write_schedule(config, steps_per_epoch),
        facts=facts,
        max_code=max_code,
    )
