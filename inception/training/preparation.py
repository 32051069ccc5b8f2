"""Builds and restores a training before its first step, alone or as one of several workers."""

import dataclasses
from collections.abc import Sequence
from typing import IO

import tensorflow as tf

from inception.flags.checks import may_code_sums
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from inception.training import learning_rate, prediction, refusals, settings
from inception.training.batches import training_batches
from inception.training.build import Training, build_training
from inception.training.problem import Problem, problem_of
from inception.training.restoring import is_finished, restore_chief, restore_memory
from inception.training.sharded_state import (
    ShardedState,
    make_sharded_state,
    own_settings,
    print_sharded_state,
)
from slim.datasets import dataset_factory, dataset_info
from slim.datasets.dataset_factory import Dataset
from terngrad.codecs.factory import find_codec
from terngrad.exchange.connection import Connection, NetworkSpeed, measure_network
from terngrad.exchange.local import LocalExchange
from terngrad.library.group import Group
from terngrad.training import checkpoints, runtime
from terngrad.training.runner import Runner

_SYNTHETIC_EXAMPLES = 50_000  # in an epoch of synthetic images


@dataclasses.dataclass(frozen=True)
class PreparedTraining:
    """A training that is ready for its next step.

    Attributes:
      config, problem, dataset: what is trained; dataset None = synthetic images.
      steps_per_epoch: of the data set.
      settings: settings that its checkpoints note.
      training: parts of the training.
      group: workers of the training.
      cluster: flags of one of several workers; None in a program that trains alone.
      devices: towers of this process.
      sharded: what the ps hold of an asynchronous training; None if all workers step together.
      checkpoint: path of the current step's checkpoint, if there is one.
      saves_soon: whether the chief was killed while it saved, so that a checkpoint is missing.
      lock: keeps other trainings from the folder while it is open; None except in the chief.
      stopped: int64, 1 after a request to stop the run. It belongs to the shared state, so that a
        worker that receives the state does not train on alone.
    """

    config: TrainConfig
    problem: Problem
    dataset: Dataset | None
    steps_per_epoch: float
    settings: str
    training: Training
    group: Group
    cluster: ClusterConfig | None
    devices: Sequence[str]
    sharded: ShardedState | None
    checkpoint: str | None = None
    saves_soon: bool = False
    lock: IO[str] | None = None
    stopped: tf.Variable = dataclasses.field(
        default_factory=lambda: tf.Variable(0, dtype=tf.int64, trainable=False)
    )

    @property
    def connection(self) -> Connection | None:
        """The connection between the workers; None if there is only one."""
        return self.group.connection

    @property
    def shared(self) -> list[tf.Variable]:
        """The variables that are equal on all workers, the step first."""
        return [*self.training.state.values(), self.stopped]


def prepare(
    config: TrainConfig,
    group: Group | None = None,
    cluster: ClusterConfig | None = None,
    devices: Sequence[str] = (),
) -> PreparedTraining | None:
    """Builds a training and restores its newest checkpoint; None if nothing is left to train.

    Only the chief loads the checkpoint. It sends the state to the other workers or, later, in an
    asynchronous training, to the ps.

    Args:
      config: what to train.
      group: workers of the training; None = this process is alone.
      cluster: flags of one of several workers.
      devices: what `set_up` returned, if it was called.

    Raises:
      ValueError: data, net and checkpoint do not fit each other, or the workers differ.
    """
    group = group or Group()
    asynchronous = cluster if cluster and not cluster.cross_replica_sync else None
    if group.size == 1 and not asynchronous and is_finished(config):
        return None
    devices = devices or set_up(config)
    problem = problem_of(config)
    if config.codec:
        # So that an unknown codec fails before other processes wait for this one.
        find_codec(config.codec, config.scale_by, config.sum_codec)
    data = None if config.benchmark_mode else open_dataset(config)
    own = own_settings(asynchronous) if asynchronous else {}
    noted = settings.describe(config, data, group.size, group.batches_per_step, own)
    examples = _count_examples(data, group, cluster)
    probes = bool(cluster and cluster.predict)
    network = measure_network(group.connection) if probes and group.connection else None
    epoch = examples / (config.batch_size * group.batches_per_step)
    on_batch = group.progress.tick if group.size > 1 else None
    training = build_training(config, problem, epoch, devices, group.connection, on_batch)
    sharded = None
    if asynchronous:
        sharded = make_sharded_state(config, asynchronous, group, data, epoch, training)
    prepared = _restore(
        PreparedTraining(
            config, problem, data, epoch, noted, training, group, cluster, devices, sharded
        )
    )
    expected = _predict(prepared, network) if probes else ""
    if group.is_chief:
        _log_plan(prepared)
        print(expected, end="\n" * bool(expected), flush=True)
    return prepared


def _predict(prepared: PreparedTraining, network: NetworkSpeed | None) -> str:
    if not network:
        return "--predict: nothing to predict, as one worker without a ps exchanges no gradients."
    # All workers measure at once: those that share a machine slow each other down as in training.
    return prediction.predict(
        prepared.config,
        prepared.problem,
        prepared.training,
        prepared.devices,
        prepared.connection,
        network,
        may_code_sums=may_code_sums(prepared.cluster),
    )


def _restore(prepared: PreparedTraining) -> PreparedTraining:
    """Restores the chief's checkpoint, shares it among the workers, and restores memories."""
    config, training, group = prepared.config, prepared.training, prepared.group
    lock = checkpoint = None
    saves_soon, begins = False, True
    if group.is_chief:
        saves_soon = checkpoints.was_interrupted(config.train_dir)
        lock, checkpoint = restore_chief(config, training, prepared.settings)
        if prepared.dataset:
            _note_classes(config, prepared.dataset)
    elif _may_save(prepared):
        refusals.check_writable("train_dir", config.train_dir)
    if prepared.connection:
        newest = checkpoints.latest_checkpoint(config.train_dir)
        if prepared.cluster and prepared.cluster.elastic:
            _compile(prepared)
        begins = _share_state(prepared)
        if checkpoint and checkpoints.step_of(checkpoint) != int(training.step):
            checkpoint = None  # the others are at a later step
        _log_if_ahead(newest, training)
    if not prepared.sharded:
        restore_memory(config, training, group.rank)
    if not begins:
        training.memory.begin_sums()  # as the others have
    return dataclasses.replace(prepared, checkpoint=checkpoint, saves_soon=saves_soon, lock=lock)


def _may_save(prepared: PreparedTraining) -> bool:
    """Whether a worker other than the chief may have to write to its --train_dir."""
    if prepared.sharded:
        return False
    takes_over = prepared.cluster is not None and prepared.cluster.elastic
    return takes_over or bool(prepared.training.memory.variables)


def _compile(prepared: PreparedTraining) -> None:
    """Compiles all kinds of steps before the others wait for one: they may train already."""
    training, batches = prepared.training, iter(worker_batches(prepared, 0))
    for runner in dict.fromkeys([*training.runners, *training.float_runners]):
        for each in filter(None, (runner, runner.excluded_runner)):
            each.compile(batches)  # reads no batch


def _note_classes(config: TrainConfig, dataset: Dataset) -> None:
    """Writes the names of the classes beside the checkpoints, which hold numbers only."""
    dataset_info.check_labels(
        config.train_dir, dataset.class_names, f"the records of {config.data_dir}"
    )
    try:
        dataset_info.write_labels(config.train_dir, dataset.class_names)
    except OSError as error:
        why = f"is not writable ({error.strerror})"
        raise refuse("train_dir", config.train_dir, why) from None


def set_up(config: TrainConfig) -> Sequence[str]:
    """Configures this process, before it computes anything; returns its towers."""
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=config.log_device_placement,
    )
    return runtime.towers(config.num_gpus, on_cpu=config.clone_on_cpu)


def _count_examples(dataset: Dataset | None, group: Group, cluster: ClusterConfig | None) -> int:
    """Returns the number of examples in an epoch.

    It is the same on all workers, since schedules and float epochs depend on it.
    """
    split_data, connection = _splits_data(cluster), group.connection
    if connection:
        # All workers have counted their records here, so that none waits for another in TensorFlow.
        group.compare(settings.data_configuration(dataset, split_data))
    if dataset is None:
        examples = _SYNTHETIC_EXAMPLES
    elif split_data:
        examples = dataset.num_examples
    elif connection is None:
        examples = dataset.num_examples * group.size
    else:
        shares = connection.all_gather(tf.constant([dataset.num_examples]), "examples")
        examples = int(tf.reduce_sum(tf.cast(shares, tf.int64)))
    if connection:  # a worker that joined meanwhile may have changed the count
        group.compare({"examples": str(examples)})
    return examples


def _splits_data(cluster: ClusterConfig | None) -> bool:
    """Whether each worker reads its share of the records, not records of its own."""
    return cluster is None or cluster.split_data


def worker_batches(prepared: PreparedTraining, step: int) -> tf.data.Dataset:
    """Returns a worker's batches from step `step` on."""
    config, group = prepared.config, prepared.group
    if _splits_data(prepared.cluster) or prepared.dataset is None:
        index, count, seed = group.rank, group.size, config.seed
    else:  # each worker reads all its records; with equal records, the order still differs
        index, count, seed = 0, 1, config.seed + (group.rank << 32)
    config = dataclasses.replace(config, seed=seed)
    return training_batches(config, prepared.problem, prepared.dataset, step, index, count)


def _share_state(prepared: PreparedTraining) -> bool:
    """Makes parameters, slots, averages and step equal on all workers, and checks them.

    Returns whether the training begins with this state.
    """
    training = prepared.training
    prepared.group.compare(
        {
            "layout": training.layout.fingerprint().hex(),
            "kernels": training.kernel_choice.kernels.compared,
        }
    )
    begins = prepared.group.synchronize(prepared.shared)
    if not begins:
        print(f"Joined the training at step {int(training.step)}.", flush=True)
    return begins


def _log_if_ahead(own: str | None, training: Training) -> None:
    """Reports a checkpoint that this worker saved in the chief's place, if it is newer."""
    if own and checkpoints.step_of(own) > int(training.step):
        print(
            f"The training continues from step {int(training.step)}, though this worker has {own}: "
            "to continue from that, start again with it in the chief's --train_dir.",
            flush=True,
        )


def open_dataset(config: TrainConfig) -> Dataset:
    """Returns the records that a config names; ValueError if there are none."""
    dataset = dataset_factory.get_dataset(config.dataset_name, config.subset, config.data_dir)
    if dataset.num_examples == 0:
        raise ValueError(f"--data_dir={config.data_dir}: the {config.subset} files are empty.")
    return dataset


def _log_plan(prepared: PreparedTraining) -> None:
    if prepared.sharded:
        print_sharded_state(prepared.config, prepared.group, prepared.training, prepared.sharded)
        return
    _log_exchange(prepared.config, prepared.training, prepared.cluster)
    if prepared.cluster:
        print(learning_rate.describe(prepared.config, prepared.steps_per_epoch), flush=True)


def _log_exchange(config: TrainConfig, training: Training, cluster: ClusterConfig | None) -> None:
    layout = training.layout
    sent = _bytes_sent(training, training.runners)
    who = "each" if isinstance(training.exchange, LocalExchange) else "each worker"
    kind = config.codec_name if layout.coded else "ternary"
    at_most = "at most " if training.exchange.packs_codes and layout.coded else ""
    # Where workers are lost, the owners that are left code larger shares.
    loses = config.codes_sums and cluster and cluster.elastic
    meanwhile = " while all workers are there" if loses else ""
    print(
        f"{config.net}: {layout.size} parameters in {len(layout.names)} variables, "
        f"{len(layout.coded)} of them {kind}; {training.nodes} nodes x "
        f"{config.batch_size // config.nodes} images; "
        f"{who} sends {at_most}{sent:.0f} bytes a step, {8 * sent / layout.size:.4g} bits a "
        f"parameter{_how_often(config)}{meanwhile}.",
        flush=True,
    )
    every = config.floating_grad_epoch if layout.coded else 0
    if every:
        which = "Every epoch" if every == 1 else f"Every epoch in {every}, the last of them,"
        plain = _bytes_sent(training, training.float_runners)
        print(f"{which} uses float gradients: {plain:.0f} bytes a step.")
    step = int(training.step)
    if config.profile_steps and step > config.profile_steps[0]:
        print(f"--profile_steps: step {config.profile_steps[0]} is past; the run is at {step}.")
    if config.profile_steps and config.profile_steps[0] >= config.last_step:
        print(f"--profile_steps: no step is profiled; the run ends at step {config.last_step}.")
    if len(training.runners) > 1:
        sizes = [training.size_of(runner) for runner in training.runners]
        each = f"--local_fragments={len(sizes)}: {min(sizes)} to {max(sizes)} parameters each"
        print(f"{each}, one of them after each {config.steps_per_exchange} steps.", flush=True)
    if layout.coded:
        print(f"Codes are written and read by {training.kernel_choice}.", flush=True)


def _bytes_sent(training: Training, runners: Sequence[Runner]) -> float:
    return sum(payload.sent for payload in training.traffic(runners[0].codecs))


def _how_often(config: TrainConfig) -> str:
    if config.local_steps == 1:
        return ""
    count = config.local_fragments
    exchanges = "one exchange" if count == 1 else f"the exchanges of {count} fragments"
    return f", on average of {config.local_steps} local steps and {exchanges}"
