"""What a training builds and restores before its first step, alone or as one of several workers."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import IO

import tensorflow as tf

from inception.cluster.workers import ALONE, Workers, fingerprint
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import learning_rate, problem, runtime, settings
from inception.training.build import Training, build_training
from inception.training.held import Held, make_held, own_settings, tell_held
from inception.training.problem import Problem
from inception.training.restoring import is_finished, restore_chief, restore_memory
from slim.datasets import dataset_factory
from slim.datasets.dataset_factory import Dataset
from terngrad.codecs.factory import find_codec
from terngrad.exchange.connection import Connection, InterruptionError
from terngrad.exchange.local import LocalExchange
from terngrad.training import checkpoints
from terngrad.training.runner import Runner

_SYNTHETIC_EXAMPLES = 50_000  # what an epoch is while nothing is read


@dataclasses.dataclass(frozen=True)
class Ready:
    """A training that is ready for its next step.

    Attributes:
      config, goal, dataset: what is trained; no dataset stands for synthetic images.
      steps_per_epoch: of the data set.
      settings: what its checkpoints note.
      training: its parts.
      checkpoint: of the step that it stands at, if there is one.
      workers: who takes part.
      connection: between them; None if there is but one.
      devices: towers of this process.
      held: what the ps hold of an asynchronous training; None where all workers step together.
      lock: keeps other trainings from the folder while it is open; None where the chief writes.
      stopped: 1 once the run was asked to stop; goes with the state, so that a worker that is given
        it does not train on alone.
    """

    config: TrainConfig
    goal: Problem
    dataset: Dataset | None
    steps_per_epoch: float
    settings: str
    training: Training
    checkpoint: str | None
    workers: Workers
    connection: Connection | None
    devices: Sequence[str]
    held: Held | None
    lock: IO[str] | None
    stopped: tf.Variable

    @property
    def shared(self) -> list[tf.Variable]:
        """What all workers have in common, the step first."""
        return [*self.training.state.values(), self.stopped]


def prepare(
    config: TrainConfig, workers: Workers = ALONE, holders: ClusterConfig | None = None
) -> Ready | None:
    """Builds a training and restores its newest checkpoint; None if nothing is left to train.

    Of several workers the chief alone has the checkpoint. It gives its contents to the others, or
    later, in an asynchronous training, to the ps.

    Args:
      config: what to train.
      workers: who takes part.
      holders: names the ps that hold the parameters; None where all workers step together.

    Raises:
      ValueError: data, net and checkpoint do not fit each other, or the workers differ.
    """
    if workers.size == 1 and not holders and is_finished(config):
        return None
    devices = _set_up(config)
    goal = problem.resolve(config)
    if config.codec:
        find_codec(config.codec)  # before anyone waits for a process that cannot have it
    dataset = None if config.benchmark_mode else open_dataset(config)
    own = own_settings(holders) if holders else {}
    noted = settings.describe(config, dataset, workers.size, workers.batches_per_step, own)
    # Also a place to meet: nobody waits within TensorFlow for one that still counts its records.
    workers.agree(settings.data_facts(dataset, workers.split_data))
    connection = workers.connect()
    examples = _count_examples(dataset, workers, connection)
    workers.agree({"examples": str(examples)})  # which counts those of others who came
    steps_per_epoch = examples / (config.batch_size * workers.batches_per_step)
    on_batch = workers.pulse.tick if workers.size > 1 else None
    training = build_training(config, goal, steps_per_epoch, devices, connection, on_batch)
    held = None
    if holders:
        held = make_held(config, holders, workers, dataset, steps_per_epoch, training)
    lock = checkpoint = None
    if workers.is_chief:
        lock, checkpoint = restore_chief(config, training, noted)
    stopped = tf.Variable(0, dtype=tf.int64, trainable=False)
    if connection:
        newest = checkpoints.latest_checkpoint(config.train_dir)
        _share_state(training, stopped, workers, connection)
        if checkpoint and checkpoints.step_of(checkpoint) != int(training.step):
            checkpoint = None  # the others are further
        _tell_if_ahead(newest, training)
    if not holders:
        restore_memory(config, training, workers.rank)
    ready = Ready(
        config,
        goal,
        dataset,
        steps_per_epoch,
        noted,
        training,
        checkpoint,
        workers,
        connection,
        devices,
        held,
        lock,
        stopped,
    )
    if workers.is_chief:
        _tell_plan(ready)
    return ready


def _set_up(config: TrainConfig) -> Sequence[str]:
    """Sets this process up, before it computes anything; returns its towers."""
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=config.log_device_placement,
    )
    return runtime.towers(config.num_gpus, on_cpu=config.clone_on_cpu)


def _count_examples(
    dataset: Dataset | None, workers: Workers, connection: Connection | None
) -> int:
    """Examples of an epoch, the same on all workers: schedules and float epochs follow from it."""
    if dataset is None:
        return _SYNTHETIC_EXAMPLES
    if workers.split_data:
        return dataset.num_examples
    if connection is None:
        return dataset.num_examples * workers.size
    shares = connection.all_gather(tf.constant([dataset.num_examples]), "examples")
    return int(tf.reduce_sum(tf.cast(shares, tf.int64)))


def _share_state(
    training: Training, stopped: tf.Variable, workers: Workers, connection: Connection
) -> None:
    """Lets all have the same parameters, slots, averages and step, and checks that they do."""
    workers.agree(
        {
            "layout": training.layout.fingerprint().hex(),
            "kernels": training.kernel_choice.kernels.family,
        }
    )
    variables = list(training.state.values())
    while connection.synchronize([*variables, stopped]):
        with contextlib.suppress(InterruptionError):
            workers.agree({"parameters": fingerprint([v.numpy() for v in variables])})
            return
    print(f"Joined the training at step {int(training.step)}.", flush=True)


def _tell_if_ahead(own: str | None, training: Training) -> None:
    """Tells of what a worker once saved in the chief's place, if the others are not so far."""
    if own and checkpoints.step_of(own) > int(training.step):
        print(
            f"The training goes on from step {int(training.step)}, though this worker has {own}: "
            "to go on from that, start again with it in the chief's --train_dir.",
            flush=True,
        )


def open_dataset(config: TrainConfig) -> Dataset:
    """The records that a config names; ValueError where there are none."""
    dataset = dataset_factory.get_dataset(config.dataset_name, config.subset, config.data_dir)
    if dataset.num_examples == 0:
        raise ValueError(f"--data_dir={config.data_dir}: the {config.subset} files are empty.")
    return dataset


def _tell_plan(ready: Ready) -> None:
    if ready.held:
        tell_held(ready.config, ready.workers, ready.training, ready.held)
        return
    _tell_exchange(ready.config, ready.training)
    if ready.workers is not ALONE:
        print(learning_rate.plan(ready.config, ready.steps_per_epoch), flush=True)


def _tell_exchange(config: TrainConfig, training: Training) -> None:
    layout = training.layout
    sent = _bytes_sent(training, training.runner)
    who = "each" if isinstance(training.exchange, LocalExchange) else "each worker"
    print(
        f"{config.net}: {layout.size} parameters in {len(layout.names)} variables, "
        f"{len(layout.coded)} of them {config.codec or 'ternary'}; {training.nodes} nodes x "
        f"{config.batch_size // config.nodes} images; "
        f"{who} sends {sent:.0f} bytes a step, {8 * sent / layout.size:.4g} bits a parameter.",
        flush=True,
    )
    every = config.floating_grad_epoch if layout.coded else 0
    if every:
        which = "Every epoch" if every == 1 else f"Every epoch in {every}, the last of them,"
        plain = _bytes_sent(training, training.float_runner)
        print(f"{which} uses float gradients: {plain:.0f} bytes a step.")
    step = int(training.step)
    if config.profile_steps and step > config.profile_steps[0]:
        print(f"--profile_steps: step {config.profile_steps[0]} is past; the run is at {step}.")
    if layout.coded:
        print(f"Codes are written and read by {training.kernel_choice}.", flush=True)


def _bytes_sent(training: Training, runner: Runner) -> float:
    return sum(payload.sent for payload in training.traffic(runner.codecs))
