"""Checkpoints: whole or absent, by step, with weights that can be read by name.

A checkpoint holds a flat set of named variables: `step`, `variables/NAME`, `averages/NAME`,
`slots/SLOT/NAME`; and beside them a text, the settings it was trained with. It is written under a
temporary name; its index is renamed last, so that a checkpoint whose index stands in the folder is
complete. What codecs keep of gradients is in checkpoints of their own, see memory.py.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from terngrad.training.divergence import NotFiniteError

_NAME = "model.ckpt"
_TEMPORARY = ".saving"
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_SETTINGS = f"settings{_SUFFIX}"

State = Mapping[str, tf.Variable]


def save(directory: str, state: State, step: int, keep: int = 5, settings: str = "") -> str:
    """Writes a checkpoint and removes all but it and the newest `keep` - 1 of the folder.

    Args:
      directory: gets the checkpoint.
      state: the variables by name.
      step: number of steps done.
      keep: number of checkpoints; 0 keeps all.
      settings: any text, for `settings_of`.

    Returns:
      The checkpoint's path, without the endings of its files.

    Raises:
      NotFiniteError: names the variables that are not finite; nothing is written then.
      OSError: the folder cannot be written to, or is full; nothing is left of the attempt.
    """
    broken = [name for name, v in state.items() if not _is_finite(v)]
    if broken:
        raise NotFiniteError(
            f"step {step} is not saved: {', '.join(broken)} holds NaN or infinity."
        )
    temporary = os.path.join(directory, _TEMPORARY)
    shutil.rmtree(temporary, ignore_errors=True)
    name = f"{_NAME}-{step}"
    try:
        _write(os.path.join(temporary, name), state, settings)
    except tf.errors.OpError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        last = latest_checkpoint(directory) or "none"
        raise OSError(
            f"{directory}: step {step} cannot be saved: {error.message}; last checkpoint: {last}."
        ) from error
    written = sorted(os.listdir(temporary), key=lambda file: file.endswith(".index"))
    for file in written:
        os.replace(os.path.join(temporary, file), os.path.join(directory, file))
    os.rmdir(temporary)
    _rotate(directory, keep, step)
    return os.path.join(directory, name)


def all_checkpoints(directory: str) -> list[str]:
    """Paths of the folder's complete checkpoints, oldest first."""
    indices = glob.glob(os.path.join(glob.escape(directory), f"{_NAME}-*.index"))
    paths = [index.removesuffix(".index") for index in indices]
    whole = [p for p in paths if re.fullmatch(rf"{_NAME}-\d+", os.path.basename(p))]
    return sorted(whole, key=step_of)


def latest_checkpoint(directory: str) -> str | None:
    """Path of the folder's newest complete checkpoint; None if there is none."""
    paths = all_checkpoints(directory)
    return paths[-1] if paths else None


def at_step(directory: str, step: int) -> str | None:
    """Path of the folder's complete checkpoint of a step; None if there is none."""
    found = [path for path in all_checkpoints(directory) if step_of(path) == step]
    return found[0] if found else None


def step_of(path: str) -> int:
    """The number of steps that were done when the checkpoint was written."""
    return int(path.rpartition("-")[2])


def settings_of(path: str) -> str:
    """The text that the checkpoint was saved with; empty if there is none."""
    reader = tf.train.load_checkpoint(path)
    return reader.get_tensor(_SETTINGS).decode() if reader.has_tensor(_SETTINGS) else ""


def restore(path: str, state: State) -> None:
    """Reads every variable of `state` from the checkpoint.

    Raises:
      ValueError: names variables that are missing, left over, or of another shape.
    """
    stored = _stored(path)
    _check_shapes(path, stored, state)
    left_over = sorted(stored.keys() - state.keys())
    if left_over:
        raise ValueError(f"{path} also holds {_some(left_over)}, which this run does not have.")
    _read(path, state)


def restore_weights(
    path: str,
    model: keras.Model,
    *,
    averages: bool,
    exclude: Sequence[str] = (),
    ignore_missing: bool = False,
) -> None:
    """Reads a model's weights, by variable name, from a training checkpoint.

    Args:
      path: of the checkpoint.
      model: gets the weights.
      averages: read the moving averages where a variable has one.
      exclude: variables whose names begin with one of these keep their values.
      ignore_missing: so do variables that the checkpoint does not hold.

    Raises:
      ValueError: names what is missing or has another shape.
    """
    stored = _stored(path)
    averaged = {name.removeprefix("averages/") for name in stored if name.startswith("averages/")}
    if averages and not averaged:
        raise ValueError(
            f"{path} holds no moving averages; take the weights instead (--restore_avg_var=False)."
        )
    wanted = {}
    for v in model.variables:
        if not v.path.startswith(tuple(exclude)):
            group = "averages" if averages and v.path in averaged else "variables"
            wanted[f"{group}/{v.path}"] = v.value
    if ignore_missing:
        wanted = {name: v for name, v in wanted.items() if name in stored}
    _check_shapes(path, stored, wanted)
    _read(path, wanted)


def _write(path: str, state: State, settings: str) -> None:
    with tf.device("/CPU:0"):  # the only one that holds texts
        text = tf.Variable(settings, trainable=False)
    tf.train.Checkpoint(state=dict(state), settings=text).write(path)


def _stored(path: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the stored variables by name."""
    try:
        shapes = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no readable checkpoint: {reason}") from error
    stored = {}
    for key, shape in shapes.items():
        if key.startswith("state/") and key.endswith(_SUFFIX):
            name = key.removeprefix("state/").removesuffix(_SUFFIX)
            stored[name.replace(".S", "/").replace("..", ".")] = tuple(shape)
    return stored


def _check_shapes(path: str, stored: Mapping[str, tuple[int, ...]], wanted: State) -> None:
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        what = "optimizer" if missing[0].startswith("slots/") else "net"
        raise ValueError(f"{path} lacks {_some(missing)}: was it written with another {what}?")
    for name, variable in wanted.items():
        if stored[name] != tuple(variable.shape):
            raise ValueError(
                f"{path}: {name} has shape {stored[name]}; this net's is {tuple(variable.shape)}."
            )


def _read(path: str, state: State) -> None:
    reader = tf.train.load_checkpoint(path)
    try:
        for name, variable in state.items():
            escaped = name.replace(".", "..").replace("/", ".S")
            variable.assign(reader.get_tensor(f"state/{escaped}{_SUFFIX}"))
    except (tf.errors.OpError, IndexError) as error:  # a file that is too short: IndexError
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def _is_finite(variable: tf.Variable) -> bool:
    if not variable.dtype.is_floating:
        return True
    return bool(tf.reduce_all(tf.math.is_finite(variable)))


def _rotate(directory: str, keep: int, written: int) -> None:
    # Those of a run that had come further, and was lost, must not crowd out what was just written.
    others = [path for path in all_checkpoints(directory) if step_of(path) != written]
    for path in others[: max(0, len(others) - keep + 1)] if keep else []:
        # The index goes first: without it nobody takes the rest for a checkpoint.
        for file in sorted(glob.glob(glob.escape(path) + ".*"), reverse=True):
            os.remove(file)
    _write_state_file(directory)


def _write_state_file(directory: str) -> None:
    """The file by which other tools find the newest checkpoint."""
    names = [os.path.basename(path) for path in all_checkpoints(directory)]
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    temporary = os.path.join(directory, f"checkpoint{_TEMPORARY}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(temporary, os.path.join(directory, "checkpoint"))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
