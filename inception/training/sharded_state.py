"""The part of an asynchronous training on the ps, and its configuration.

All workers must have the same configuration.
"""

import dataclasses
import json
import secrets
from collections.abc import Sequence

from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import settings
from inception.training.build import Training
from inception.training.learning_rate import write_schedule
from inception.training.restoring import log_cleared_memory
from slim.datasets.dataset_factory import Dataset
from terngrad.asynchronous.copies import FLOAT_BYTES, ChangeCode, change_codes, max_coded_bytes
from terngrad.asynchronous.gradient import check_codecs
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.row import Shard, make_shards
from terngrad.codecs.factory import largest_code
from terngrad.layout import FLOAT
from terngrad.library.group import Group


@dataclasses.dataclass(frozen=True)
class ShardedState:
    """The part of a training on the ps.

    Attributes:
      plan: plan of the run that this worker would begin.
      shards: shard of each ps.
      change_codes: of each shard, see `change_codes`.
    """

    plan: Plan
    shards: Sequence[Shard]
    change_codes: Sequence[ChangeCode | None]


def own_settings(cluster: ClusterConfig) -> dict[str, object]:
    """Returns the settings that decide the result of asynchronous trainings only."""
    return {
        "cross_replica_sync": False,
        "max_staleness": cluster.max_staleness,
        "pull_bits": cluster.pull_bits,
        "pull_codec": cluster.pull_codec,
    }


def make_sharded_state(
    config: TrainConfig,
    cluster: ClusterConfig,
    group: Group,
    dataset: Dataset | None,
    steps_per_epoch: float,
    training: Training,
) -> ShardedState:
    """Returns the part of `training` on the ps; for the arguments see `PreparedTraining`."""
    layout, codecs = training.layout, training.codecs
    check_codecs(codecs, config.codec)
    statistics = sum(v.shape.num_elements() for v in training.classifier.state.values())
    max_code = largest_code(codecs)
    configuration = settings.configuration(config, group.size)
    configuration |= settings.data_configuration(dataset, cluster.split_data)
    configuration |= {name: json.dumps(value) for name, value in own_settings(cluster).items()}
    if cluster.pull_codec == FLOAT:  # older files lack it
        del configuration["pull_codec"]
    configuration["layout"] = layout.fingerprint().hex()
    configuration["kernels"] = training.kernel_choice.kernels.family
    plan = Plan(
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
        max_steps=config.last_step,
        max_staleness=cluster.max_staleness,
        pull_bits=cluster.pull_bits,
        schedule=write_schedule(config, steps_per_epoch),
        configuration=configuration,
        max_code=max_code,
        pull_codec=cluster.pull_codec,
    )
    ps_count = len(cluster.ps_hosts)
    shards = make_shards(layout, ps_count, config.nodes, statistics, max_code)
    return ShardedState(plan, shards, change_codes(plan, shards, training.kernel_choice.kernels))


def print_sharded_state(
    config: TrainConfig, group: Group, training: Training, sharded: ShardedState
) -> None:
    """Prints what a worker pushes and pulls."""
    layout, shards = training.layout, sharded.shards
    kind = config.codec_name if layout.coded else "ternary"
    pushed = sum(shard.pushed_bytes[-1] for shard in shards)
    at_most = "at most " if layout.coded else ""
    whole = sum(shard.pulled_bytes(sharded.plan.pull_bits) for shard in shards)
    pulled = f"{whole}"
    if sharded.plan.pull_codec != FLOAT:
        coded = sum(max_coded_bytes(sharded.plan, shards).values())
        coded += FLOAT_BYTES * sum(shard.statistics for shard in shards)
        pulled = f"at most {coded:.0f}, at first {whole}"
    print(
        f"{config.net}: {layout.size} parameters in {len(layout.names)} variables, "
        f"{len(layout.coded)} of them {kind}, on {len(shards)} ps; each of "
        f"{group.size} workers pushes {at_most}{pushed} bytes a step and pulls {pulled}, without "
        "waiting for the others.",
        flush=True,
    )
    if training.memory.variables and int(training.step):
        log_cleared_memory(config, "asynchronous workers do not save their memory")
    if layout.coded:
        print(f"Codes are written by {training.kernel_choice}.", flush=True)
