"""What the training programs share: one run, alone or as one of several workers."""

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from inception import app
from inception.cluster.workers import Workers, fingerprint
from inception.flags.configs import TrainConfig
from inception.training.batches import training_batches
from inception.training.looping import ENDLESS, run_loop
from inception.training.preparation import Ready, memory_folder
from inception.training.problem import Problem
from slim.datasets.dataset_factory import Dataset
from terngrad.cluster.channel import DifferenceError, FinishedError, MembershipError
from terngrad.exchange.connection import InterruptionError
from terngrad.training import checkpoints
from terngrad.training.loop import StopRequest
from terngrad.training.runner import Runner
from terngrad.training.synchronous import SynchronousStepper

_CHIEF_SAVED = "the chief saved; the same command goes on from there"


def train(ready: Ready) -> None:
    """Trains to max_steps.

    Raises:
      ValueError: a record is bad, or the training diverged.
      SystemExit: with the signal's status, after a signal stopped the run and it was saved.
    """
    training = ready.training
    # To the end: a worker that is asked to stop while others save must not fail them.
    with StopRequest() as stop, _saving_at_a_loss(ready):
        checkpoint, stopped = _run(ready, stop)
        ready.stopped.assign(int(stopped))
        _compare_copies(ready)
        checkpoint = checkpoint or _save(ready, step=int(training.step))
    if stopped:
        asked = stop.signal.name if stop.signal else "another worker was asked to stop"
        say(f"{asked}: {how_to_go_on(checkpoint) if checkpoint else _CHIEF_SAVED}.")
        sys.exit(128 + (stop.signal or signal.SIGTERM))
    where = checkpoint or "the chief has the checkpoint"
    say(f"Finished training at step {int(training.step)}: {where}")
    if ready.lock:
        ready.lock.close()


def _run(ready: Ready, stop: StopRequest) -> tuple[str | None, bool]:
    """See `Loop.run`."""
    config, training, step = ready.config, ready.training, int(ready.training.step)
    stepper = SynchronousStepper(
        runner_at=lambda step: _runner_at(ready, step),
        batches=iter(worker_batches(config, ready.goal, ready.dataset, ready.workers, step)),
        batch_size=config.batch_size,
        layout=training.layout,
        step=step,
        pulse=ready.workers.pulse,
        regain=lambda: _regained(ready),
        is_stopped=lambda: bool(ready.stopped.numpy()),
    )
    return run_loop(ready, stepper, lambda step: _save(ready, step), training.traffic, stop)


@contextlib.contextmanager
def _saving_at_a_loss(ready: Ready) -> Iterator[None]:
    """Saves the steps made so far where a worker or ps is lost for good within the block."""
    try:
        yield
    except FinishedError:
        raise
    except MembershipError as error:
        try:
            saved = _save(ready, int(ready.training.step)) if _is_finite(ready) else None
        except OSError as second:
            raise MembershipError(f"{error}; nothing is saved: {second}") from error
        if saved is None:
            raise
        raise MembershipError(f"{error}; saved {saved}") from error


def _is_finite(ready: Ready) -> bool:
    """Whether the state is worth to be saved: a worker may be lost since the training diverged."""
    values = (v.numpy() for v in ready.training.state.values() if v.dtype.is_floating)
    return all(np.isfinite(value).all() for value in values)


def how_to_go_on(saved: str) -> str:
    """Says that a checkpoint was saved, and from where the same command goes on."""
    newest = checkpoints.latest_checkpoint(os.path.dirname(saved)) or saved
    is_newest = checkpoints.step_of(newest) == checkpoints.step_of(saved)
    # The state of a ps or of another worker may be older than what was saved before it was lost.
    where = "there" if is_newest else f"{newest}, which is of a later step"
    return f"saved {saved}; the same command goes on from {where}"


def say(text: str) -> None:
    """Prints a last line; that nobody reads it is no failure for other workers to be told of."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        app.stop_writing()


def worker_batches(
    config: TrainConfig, goal: Problem, dataset: Dataset | None, workers: Workers, step: int
) -> tf.data.Dataset:
    """A worker's batches from its step `step` on; synthetic ones where `dataset` is None."""
    if workers.split_data or dataset is None:
        index, count, seed = workers.rank, workers.size, config.seed
    else:  # where workers hold the same records, they still take them in other orders
        index, count, seed = 0, 1, config.seed + (workers.rank << 32)
    config = dataclasses.replace(config, seed=seed)
    return training_batches(config, goal, dataset, step, index, count)


def _regained(ready: Ready) -> tuple[int, Iterator] | None:
    """Goes on after a step that was given up because a worker came or went."""
    connection, training = ready.connection, ready.training
    if connection is None or not connection.was_interrupted():
        return None
    before = int(training.step)
    connection.synchronize(ready.shared)
    step = int(training.step)
    if step != before:  # the state is another worker's; the memory belonged to the own
        training.memory.clear()
    batches = worker_batches(ready.config, ready.goal, ready.dataset, ready.workers, step)
    return step, iter(batches)


def _compare_copies(ready: Ready) -> None:
    """Meets the others when the chief has saved, and tells if the copies drifted apart."""
    if ready.connection is None:
        return
    state = ready.training.state
    while True:
        values = [v.numpy() for name, v in state.items() if name.startswith("variables/")]
        try:
            ready.workers.agree({"parameters at the end": fingerprint(values)})
            return
        except DifferenceError as error:  # nothing is wrong with the chief's, which are saved
            print(f"Warning: the workers' copies differ: {error}.", flush=True)
            return
        except InterruptionError:  # one that is behind needs the state of others
            ready.connection.synchronize(ready.shared)


def _save(ready: Ready, step: int) -> str | None:
    """Saves, if nobody else does; the first worker that is left does it in the chief's place.

    Every worker saves the memory of its own codecs.
    """
    config = ready.config
    folder = memory_folder(config, ready.workers.rank)
    ready.training.memory.save(folder, step, config.keep_checkpoints)
    if ready.connection and not ready.connection.leads:
        return None
    os.makedirs(config.train_dir, exist_ok=True)
    return checkpoints.save(
        config.train_dir, ready.training.state, step, config.keep_checkpoints, ready.settings
    )


def _runner_at(ready: Ready, step: int) -> tuple[Runner, int]:
    """The runner of the step after `step`, and the step up to which it serves."""
    runner, until = _planned_runner(ready, step)
    if ready.connection is None or not ready.connection.spares:
        return runner, until
    return (runner.follower if ready.connection.follows(step) else runner), step + 1


def _planned_runner(ready: Ready, step: int) -> tuple[Runner, int]:
    """The same where all workers make all steps."""
    training, every = ready.training, ready.config.floating_grad_epoch
    if not every:
        return training.runner, ENDLESS
    epoch = int(step / ready.steps_per_epoch)
    is_float = epoch % every == every - 1
    until = max(step + 1, -int(-(epoch + 1) * ready.steps_per_epoch // 1))
    return (training.float_runner if is_float else training.runner), until
