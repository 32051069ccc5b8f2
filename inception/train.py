"""What the training programs share: one run on one machine, from its config."""

import fcntl
import os
import sys
from typing import IO

import tensorflow as tf

from inception import problem, runtime
from inception.build import Training, build_training
from inception.flags import TrainConfig
from inception.logs import ProgressBar, step_line
from inception.problem import Problem
from slim import input_pipeline
from slim.datasets import dataset_factory, records
from slim.datasets.dataset_factory import Dataset
from slim.nets import nets_factory
from slim.preprocessing import preprocessing_factory
from terngrad.codecs.factory import bits_per_parameter, payloads
from terngrad.training import checkpoints
from terngrad.training.loop import Cadence, Loop, StopRequest
from terngrad.training.progress import Progress
from terngrad.training.runner import Runner
from terngrad.training.summaries import SummaryWriter

_POOL_UNIT = 1024  # images of the shuffle pool for each unit of input_queue_memory_factor
_SYNTHETIC_EXAMPLES = 50_000  # what an epoch is while nothing is read
_ENDLESS = 1 << 62


def train(config: TrainConfig) -> None:
    """Trains from the newest checkpoint of train_dir, or from the start, to max_steps.

    Raises:
      ValueError: data, net and checkpoint do not fit each other, or the training diverged.
      SystemExit: with the signal's status, after a signal stopped the run and it was saved.
    """
    runtime.configure(
        intra_threads=config.num_intra_threads,
        inter_threads=config.num_inter_threads,
        deterministic=config.deterministic,
        log_placement=config.log_device_placement,
    )
    devices = runtime.towers(config.num_gpus, on_cpu=config.clone_on_cpu)
    goal = problem.resolve(config)
    dataset = None if config.benchmark_mode else _dataset(config)
    examples = dataset.num_examples if dataset else _SYNTHETIC_EXAMPLES
    steps_per_epoch = examples / config.batch_size
    training = build_training(config, goal, steps_per_epoch, devices)
    os.makedirs(config.train_dir, exist_ok=True)
    lock = hold_alone(config.train_dir)
    checkpoint = restore_or_start(config, training)
    step = int(training.step)
    _tell_plan(config, training, step)
    batches = iter(training_batches(config, goal, dataset, step))
    with StopRequest() as stop, ProgressBar(step, config.max_steps) as bar:
        loop = _loop(config, training, batches, steps_per_epoch, bar)
        with records.naming_damage(dataset.files if dataset else ()):
            checkpoint = loop.run(step, checkpoint, stop)
    if stop.signal:
        print(f"{stop.signal.name}: saved {checkpoint}; the same command goes on from there.")
        sys.exit(128 + stop.signal)
    print(f"Finished training at step {int(training.step)}: {checkpoint}")
    lock.close()


def hold_alone(train_dir: str) -> IO[str]:
    """Locks a folder until the returned file is closed or the process ends, however it ends.

    Raises:
      ValueError: if another training holds it.
    """
    file = open(os.path.join(train_dir, ".lock"), "a+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip()
        raise ValueError(
            f"--train_dir={train_dir}: another training, process {holder}, writes there."
        ) from None
    file.truncate(0)
    print(os.getpid(), file=file, flush=True)
    return file


def training_batches(
    config: TrainConfig, goal: Problem, dataset: Dataset | None, step: int
) -> tf.data.Dataset:
    """Batches (images, labels) from step `step` on; synthetic ones where `dataset` is None."""
    if dataset is None:
        shape = (goal.image_size, goal.image_size, goal.channels)
        return input_pipeline.synthetic_batches(
            shape, goal.num_classes, config.batch_size, config.seed
        )
    batches = input_pipeline.training_batches(
        dataset,
        preprocessing_factory.get_preprocessing(goal.preprocessing, is_training=True),
        image_size=goal.image_size,
        batch_size=config.batch_size,
        seed=config.seed,
        start_step=step,
        num_readers=config.num_readers,
        num_preprocess_threads=config.num_preprocess_threads,
        shuffle_pool=_POOL_UNIT * config.input_queue_memory_factor,
        deterministic=config.deterministic,
    )
    return problem.shift_labels(batches, config.labels_offset)


def restore_or_start(config: TrainConfig, training: Training) -> str | None:
    """Restores the run's newest checkpoint, or else the pretrained weights; returns the former."""
    newest = checkpoints.latest_checkpoint(config.train_dir)
    if newest:
        checkpoints.restore(newest, training.state)
        print(f"Succesfully loaded model from {newest} at step={int(training.step)}.")
        return newest
    given = config.pretrained_model_checkpoint_path
    if given:
        _load_pretrained(config, training, checkpoints.latest_checkpoint(given) or given)
    return None


def _load_pretrained(config: TrainConfig, training: Training, path: str) -> None:
    exclude = config.checkpoint_exclude_scopes
    if config.fine_tune:
        exclude += (nets_factory.get_spec(config.net).logits_layer + "/",)
    checkpoints.restore_weights(
        path,
        training.classifier.model,
        averages=False,
        exclude=exclude,
        ignore_missing=config.ignore_missing_vars,
    )
    for name, variable in training.state.items():
        if name.startswith("averages/"):
            variable.assign(training.state[name.replace("averages/", "variables/", 1)])
    print(f"Succesfully loaded model from {path} to start with.")


def _dataset(config: TrainConfig) -> Dataset:
    dataset = dataset_factory.get_dataset(config.dataset_name, config.subset, config.data_dir)
    if dataset.num_examples == 0:
        raise ValueError(f"--data_dir={config.data_dir}: the {config.subset} files are empty.")
    return dataset


def _tell_plan(config: TrainConfig, training: Training, step: int) -> None:
    layout, codecs = training.layout, training.runner.codecs
    sent = sum(p.sent for p in payloads(codecs, training.nodes))
    print(
        f"{config.net}: {layout.size} parameters in {len(layout.names)} variables, "
        f"{len(layout.coded)} of them ternary; {training.nodes} nodes x "
        f"{config.batch_size // training.nodes} images; "
        f"each sends {sent:.0f} bytes a step, "
        f"{bits_per_parameter(layout, codecs, training.nodes):.4g} bits a parameter.",
        flush=True,
    )
    every = config.floating_grad_epoch if layout.coded else 0
    if every:
        which = "Every epoch" if every == 1 else f"Every epoch in {every}, the last of them,"
        plain = sum(p.sent for p in payloads(training.float_runner.codecs, training.nodes))
        print(f"{which} uses float gradients: {plain:.0f} bytes a step.")
    if config.profile_steps and step > config.profile_steps[0]:
        print(f"--profile_steps: step {config.profile_steps[0]} is past; the run is at {step}.")
    if layout.coded:
        print("Codes are written and read by the reference ops (TensorFlow).", flush=True)
    if config.max_steps and step >= config.max_steps:
        print(f"--max_steps={config.max_steps} is reached: there is nothing left to train.")


def _loop(
    config: TrainConfig,
    training: Training,
    batches,
    steps_per_epoch: float,
    bar: ProgressBar,
) -> Loop:
    def report(progress: Progress) -> None:
        print(step_line(progress), flush=True)
        bar.update(progress)

    wanted = config.save_summaries_secs > 0
    writer = SummaryWriter(config.train_dir, training.layout, training.nodes) if wanted else None

    def save(step: int) -> str:
        return checkpoints.save(config.train_dir, training.state, step, config.keep_checkpoints)

    return Loop(
        runner_at=lambda step: _runner_at(config, training, steps_per_epoch, step),
        batches=batches,
        batch_size=config.batch_size,
        layout=training.layout,
        cadence=Cadence(
            max_steps=config.max_steps or _ENDLESS,
            log_every=config.log_every_n_steps,
            save_every=config.save_iter,
            save_secs=config.save_interval_secs,
            summary_secs=config.save_summaries_secs,
            profile=config.profile_steps,
        ),
        report=report,
        save=save,
        writer=writer,
        profile_dir=config.train_dir,
    )


def _runner_at(
    config: TrainConfig, training: Training, steps_per_epoch: float, step: int
) -> tuple[Runner, int]:
    """The runner of the step after `step`, and the step up to which it serves."""
    every = config.floating_grad_epoch
    if not every:
        return training.runner, _ENDLESS
    epoch = int(step / steps_per_epoch)
    is_float = epoch % every == every - 1
    until = max(step + 1, -int(-(epoch + 1) * steps_per_epoch // 1))
    return (training.float_runner if is_float else training.runner), until
