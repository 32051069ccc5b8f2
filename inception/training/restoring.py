"""Loads checkpoints before the first step of a training."""

import os
from typing import IO

from inception.flags.configs import TrainConfig
from inception.flags.table import refuse
from inception.training import pretrained, settings
from inception.training.build import Training
from terngrad.files import FolderInUseError, lock_folder
from terngrad.layout import FEEDBACK_CODES
from terngrad.training import checkpoints


def is_finished(config: TrainConfig) -> bool:
    """Returns whether the newest checkpoint is of the last step, and prints that if it is.

    Raises:
      ValueError: that checkpoint trains another net or other variables, or is another program's.
    """
    newest = checkpoints.latest_checkpoint(config.train_dir)
    if not newest or not config.max_steps or checkpoints.step_of(newest) < config.max_steps:
        return False
    if checkpoints.damage(newest):
        return False
    _check_trained_alike(newest, config)
    print(f"There is nothing left to train up to step {config.max_steps}: {newest}")
    return True


def restore_chief(
    config: TrainConfig, training: Training, present: str
) -> tuple[IO[str], str | None]:
    """Restores the newest checkpoint, or else the pretrained weights; prints changed settings.

    `present` has the present settings, from `settings.describe`.

    Returns:
      The lock that keeps other trainings from the folder while it is open, and the checkpoint's
      path.

    Raises:
      ValueError: the folder is not writable, another training writes to it, the checkpoint does
        not fit, or all are damaged.
    """
    lock = _hold_folder(config.train_dir)
    checkpoint = _restore_or_start(config, training)
    if checkpoint:
        _log_differences(checkpoint, present)
    return lock, checkpoint


def _hold_folder(folder: str) -> IO[str]:
    try:
        os.makedirs(folder, exist_ok=True)
        return lock_folder(folder)
    except FolderInUseError as error:
        raise refuse("train_dir", folder, str(error)) from None
    except OSError as error:
        raise refuse("train_dir", folder, f"is not writable ({error.strerror})") from None


def _restore_or_start(config: TrainConfig, training: Training) -> str | None:
    """Restores the run's newest checkpoint, or else the pretrained weights; returns the former."""
    newest = checkpoints.latest_undamaged(config.train_dir, print)
    if newest:
        _check_trained_alike(newest, config)
        with settings.naming_image_size(newest, config):
            checkpoints.restore(newest, training.state)
        print(f"Succesfully loaded model from {newest} at step={int(training.step)}.")
        if config.pretrained_model_checkpoint_path:
            print(f"--pretrained_model_checkpoint_path: has no effect with {newest}.")
        return newest
    if config.pretrained_model_checkpoint_path:
        _load_pretrained(config, training)
    return None


def _check_trained_alike(newest: str, config: TrainConfig) -> None:
    """Raises ValueError if a checkpoint trains another net or other variables, or otherwise."""
    anew = f"name a new --train_dir and give --pretrained_model_checkpoint_path={config.train_dir}"
    if not checkpoints.is_of_suite(newest):
        why = f"holds {os.path.basename(newest)}, which another program wrote"
        raise refuse("train_dir", config.train_dir, f"{why}; to start from its weights, {anew}")
    settings.check_net(newest, config.net)
    stored = settings.settings_of_checkpoint(newest)
    if (stored.get("local_steps", 1) == 1) != (config.local_steps == 1):
        raise refuse(
            "local_steps",
            config.local_steps,
            f"{newest} was trained with --local_steps={stored.get('local_steps', 1)}; to begin or "
            f"end local steps, {anew}",
        )
    decay = stored.get("moving_average_decay", config.moving_average_decay)
    if (decay == 0) != (config.moving_average_decay == 0):
        why = f"{newest} was trained with --moving_average_decay={decay}; to begin or end averages"
        raise refuse("moving_average_decay", config.moving_average_decay, f"{why}, {anew}")
    before = tuple(stored.get("trainable_scopes", config.trainable_scopes))
    if before != config.trainable_scopes:
        raise refuse(
            "trainable_scopes",
            config.trainable_scopes,
            f"{newest} trains {','.join(before) or 'all variables'}; to train others, {anew}",
        )


def _load_pretrained(config: TrainConfig, training: Training) -> None:
    prefix = "variables/"
    pretrained.load(
        config,
        {
            name.removeprefix(prefix): variable
            for name, variable in training.state.items()
            if name.startswith(prefix)
        },
    )
    for name, variable in training.state.items():
        if name.startswith("averages/"):
            variable.assign(training.state[name.replace("averages/", prefix, 1)])


def _log_differences(checkpoint: str, now: str) -> None:
    """Prints which settings have changed since a checkpoint was written."""
    changed = settings.differences(checkpoints.settings_of(checkpoint), now)
    if changed:
        print(f"The run continues with other settings than those of {checkpoint}: {changed}.")


def memory_folder(config: TrainConfig, rank: int) -> str:
    """Returns where a worker saves its codecs' memory, beside the chief's checkpoints."""
    return os.path.join(config.train_dir, f"worker_{rank}")


def restore_memory(config: TrainConfig, training: Training, rank: int) -> None:
    """Restores the memory of a worker at the training's step, or prints why not."""
    step, folder = int(training.step), memory_folder(config, rank)
    why = training.memory.restore(folder, step)
    if why and training.memory.variables:
        log_cleared_memory(config, why)
    elif why:
        path = checkpoints.at_step(folder, step)
        print(f"This run keeps no memory; that of {path} is dropped.", flush=True)


def log_cleared_memory(config: TrainConfig, why: str) -> None:
    """Prints that a worker starts without a memory, or a part of it, and why."""
    kept = [f"--codec={config.codec}"] if config.codec in FEEDBACK_CODES else []
    kept += [f"--local_steps={config.local_steps}"] if config.local_steps > 1 else []
    kept += [f"--sum_codec={config.sum_codec}"] if config.codes_sums else []
    of = " and ".join(kept) or f"--codec={config.codec_name}"  # one of the user's own, or changed
    end = "" if why.endswith((".", "?")) else "."
    print(f"The memory of {of} starts from zero: {why}{end}", flush=True)
