"""One run of a training program, alone or as one of several workers."""

import os
import signal
import sys
from collections.abc import Iterator

from inception import app
from inception.training.looping import run_loop, say
from inception.training.preparation import PreparedTraining, worker_batches
from inception.training.restoring import log_cleared_memory
from inception.training.saving import Saver
from terngrad.cluster.errors import DifferenceError
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.parameter_server.worker_exit import LeaveTrainingError
from terngrad.library.arrays import fingerprint
from terngrad.training import checkpoints
from terngrad.training.runner import Runner
from terngrad.training.signals import StopRequest
from terngrad.training.stepper import SynchronousStepper

_NEW_OWNERS = (
    "workers came or went, or a ps did, so the shares of the means belong to other workers"
)


def train(prepared: PreparedTraining, stop_text: str = "") -> None:
    """Trains to max_steps.

    Args:
      prepared: the training.
      stop_text: text for a signal that ends a process alone before its first step.

    Raises:
      ValueError: a record is bad, or the training diverged.
      SystemExit: with the signal's status, after a signal stopped the run and it was saved.
    """
    training = prepared.training
    # Handles signals to the end, so that a stop while others save does not make them fail.
    end, saver = (lambda stop: app.end_at_once(stop, stop_text)), Saver(prepared)
    if not (prepared.connection and prepared.connection.repeats_steps):  # else see `at_a_loss`
        prepared.group.at_loss.append(saver.save_copy)
    stop = StopRequest(stuck=saver.save_while_stuck) if prepared.connection else StopRequest(end)
    with stop, saver.at_a_loss(stop):
        checkpoint, stopped = _run(prepared, stop, saver)
        if stop.signal and prepared.group.may_leave and not stopped:
            again = "the same command joins those that go on, or continues from the checkpoint"
            saved = f"; saved {checkpoint}" if checkpoint else ""
            say(f"{stop.signal.name}: left after step {int(training.step)}{saved}; {again}.")
            raise LeaveTrainingError(128 + stop.signal)
        prepared.stopped.assign(int(stopped))
        checkpoint = _save_and_compare(prepared, saver)
        saved_by = prepared.group.rank  # another one may save in the next view
        if not checkpoint:
            saved_by = prepared.connection.saver if prepared.connection else 0
    if stopped:
        asked = stop.signal.name if stop.signal else "another worker was asked to stop"
        say(f"{asked}: {stopped_text(checkpoint, saved_by)}.")
        sys.exit(128 + (stop.signal or signal.SIGTERM))
    where = checkpoint or f"worker {saved_by} has the checkpoint"
    say(f"Finished training at step {int(training.step)}: {where}")
    if prepared.lock:
        prepared.lock.close()


def _run(prepared: PreparedTraining, stop: StopRequest, saver: Saver) -> tuple[str | None, bool]:
    """See `Loop.run`."""
    config, training, step = prepared.config, prepared.training, int(prepared.training.step)
    stepper = SynchronousStepper(
        runner_at=lambda step: _runner_at(prepared, step),
        batches=iter(worker_batches(prepared, step)),
        batch_size=config.batch_size,
        layout=training.layout,
        step=step,
        stride=config.steps_per_exchange,
        process_progress=prepared.group.progress,
        regain=lambda: _recovered(prepared),
        is_stopped=lambda: bool(prepared.stopped.numpy()),
        may_leave=prepared.group.may_leave,
    )
    return run_loop(
        *(prepared, stepper, saver.save, training.traffic, stop),
        before_search=saver.save_alone,
    )


def stopped_text(checkpoint: str | None, saved_by: int) -> str:
    """Says where the training was saved: here, or by another worker."""
    if saved_by != 0:  # the training is resumed from the chief's folder
        saved = f"worker {saved_by} saved{f' {checkpoint}' if checkpoint else ''}"
        return f"{saved}; the same command continues from there if worker 0 finds it"
    if checkpoint:
        return how_to_go_on(checkpoint)
    return "worker 0 saved; the same command continues from there"


def how_to_go_on(saved: str) -> str:
    """Returns a text: a checkpoint was saved, and the same command continues from there."""
    newest = checkpoints.latest_checkpoint(os.path.dirname(saved)) or saved
    is_newest = checkpoints.step_of(newest) == checkpoints.step_of(saved)
    # The state of a ps or of another worker may be older than what was saved before it was lost.
    where = "there" if is_newest else f"{newest}, which is of a later step"
    return f"saved {saved}; the same command continues from {where}"


def _recovered(prepared: PreparedTraining) -> tuple[int, Iterator | None] | None:
    """Continues after a step that was abandoned because a worker joined or left.

    Returns:
      The step, and new batches unless the step's own one is there; None if the step failed.
    """
    connection, training = prepared.connection, prepared.training
    if connection is None or not connection.was_interrupted():
        return None
    before = int(training.step)
    prepared.group.synchronize(prepared.shared)
    step = int(training.step)
    last = training.last_batch
    if step == before and training.exchange.owner and prepared.config.codes_sums:
        codec = prepared.config.sum_codec
        say(f"The memory of --sum_codec={codec} starts from zero: {_NEW_OWNERS}.")
    if step == before and last and last.holds(step):
        return step, None
    if step != before and training.memory.variables:  # the memory belongs to the earlier step
        training.memory.clear()
        log_cleared_memory(prepared.config, f"this worker received the state of step {step}")
    if last:
        last.forget()
    return step, iter(worker_batches(prepared, step))


def _save_and_compare(prepared: PreparedTraining, saver: Saver) -> str | None:
    """Waits for all workers and the checkpoint of one; warns if the parameters differ.

    Returns the checkpoint's path if this worker saved.
    """
    state = prepared.training.state
    while True:
        checkpoint = saver.save(int(prepared.training.step))  # before the others may end
        if prepared.connection is None:
            return checkpoint
        values = [v.numpy() for name, v in state.items() if name.startswith("variables/")]
        try:
            prepared.group.compare({"parameters at the end": fingerprint(values)})
            return checkpoint
        except DifferenceError as error:  # only a warning: the copy of one is saved
            print(f"Warning: the workers' copies differ: {error}.", flush=True)
            return checkpoint
        except InterruptionError:  # a worker that is behind needs the state of the others
            prepared.group.synchronize(prepared.shared)


def _runner_at(prepared: PreparedTraining, step: int) -> tuple[Runner, int]:
    """Returns the runner of the step after `step`, and the step up to which it applies."""
    runner, until = _planned_runner(prepared, step)
    if prepared.connection is None or not prepared.connection.has_backup_workers:
        return runner, until
    return (runner.excluded_runner if prepared.connection.is_excluded(step) else runner), step + 1


def _planned_runner(prepared: PreparedTraining, step: int) -> tuple[Runner, int]:
    """Returns the same for a run in which all workers make all steps."""
    training, config = prepared.training, prepared.config
    every = config.floating_grad_epoch
    last = step + config.steps_per_exchange if config.local_fragments > 1 else config.last_step
    if not every:
        return training.next_runner(is_float=False), last
    epoch = int(step / prepared.steps_per_epoch)
    is_float = epoch % every == every - 1
    until = max(step + 1, -int(-(epoch + 1) * prepared.steps_per_epoch // 1))
    return training.next_runner(is_float=is_float), min(until, last)
