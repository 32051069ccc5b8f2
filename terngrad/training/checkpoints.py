"""Checkpoints: complete or absent, by step, with weights that can be read by name.

A checkpoint holds a flat set of named variables: `step`, `variables/NAME`, `averages/NAME`,
`slots/SLOT/NAME`. It also holds a text with the settings of the training. Its files are written
under temporary names, and the index is renamed last: a checkpoint with an index is complete, also
after a loss of power, since each file is on the disk before the next one gets its name. A file of
digests beside it tells whether it is still what was written. The codecs' memory has its own
checkpoints, see memory.py.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from terngrad.files import publish, sync
from terngrad.training.errors import NotFiniteError, first_line

_DIGESTS_ENDING = ".sha256"


_NAME = "model.ckpt"
_TEMPORARY = ".saving"
_ASIDE = "damaged"  # prefix of the files of a damaged checkpoint
_DIGESTED_BYTES = 1 << 20  # at once
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_SETTINGS = f"settings{_SUFFIX}"

State = Mapping[str, tf.Variable]


def save(directory: str, state: State, step: int, keep: int = 5, settings: str = "") -> str:
    """Writes a checkpoint, and removes all others but the newest `keep` - 1 of the folder.

    Where only these cannot be removed, or not be listed for other tools, it prints that.

    Args:
      directory: folder of the checkpoint.
      state: the variables by name.
      step: number of steps done.
      keep: number of checkpoints; 0 keeps all.
      settings: any text, for `settings_of`.

    Returns:
      The checkpoint's path, without the endings of its files.

    Raises:
      NotFiniteError: variables are not finite; nothing is written.
      OSError: the folder is full or not writable; no files are left behind.
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
        _write_digests(temporary, f"{name}{_DIGESTS_ENDING}")
        files = sorted(os.listdir(temporary), key=lambda file: file.endswith(".index"))
        if at_step(directory, step):  # an old index must not refer to new data
            for file in files:  # only renames are left for the time without an index
                sync(os.path.join(temporary, file))
            os.remove(os.path.join(directory, f"{name}.index"))
        for file in files:
            publish(os.path.join(temporary, file), os.path.join(directory, file))
    except (tf.errors.OpError, OSError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        last = latest_checkpoint(directory) or "none"
        reason = first_line(error) if isinstance(error, tf.errors.OpError) else error
        raise OSError(
            f"{directory}: step {step} cannot be saved: {reason}; last checkpoint: {last}."
        ) from error
    try:
        os.rmdir(temporary)
        _rotate(directory, keep, step)
    except OSError as error:
        rest = "older ones cannot be removed, or it cannot be listed in the file checkpoint"
        print(f"{directory}: step {step} is saved, but {rest}: {error}.", flush=True)
    return os.path.join(directory, name)


def all_checkpoints(directory: str) -> list[str]:
    """Returns the paths of the folder's complete checkpoints, oldest first."""
    indices = glob.glob(os.path.join(glob.escape(directory), f"{_NAME}-*.index"))
    paths = [index.removesuffix(".index") for index in indices]
    return sorted(filter(_is_path, paths), key=step_of)


def latest_checkpoint(directory: str) -> str | None:
    """Returns the path of the folder's newest complete checkpoint; None if there is none."""
    paths = all_checkpoints(directory)
    return paths[-1] if paths else None


def left_out(directory: str) -> list[str]:
    """Returns a line for each checkpoint without an index that is newer than the newest whole one.

    It cannot be read: its save was interrupted or is under way, or its index was lost.
    """
    newest = latest_checkpoint(directory)
    others = glob.glob(os.path.join(glob.escape(directory), f"{_NAME}-*.data-*"))
    paths = {path.rpartition(".data-")[0] for path in others}
    unread = [p for p in paths if _is_path(p) and (not newest or step_of(p) > step_of(newest))]
    return [
        f"{path} is left out: {os.path.basename(path)}.index is missing."
        for path in sorted(unread, key=step_of)
    ]


def was_interrupted(directory: str) -> bool:
    """Returns whether the last call of `save` for the folder was killed."""
    return os.path.isdir(os.path.join(directory, _TEMPORARY))


def latest_undamaged(directory: str, log: Callable[[str], None]) -> str | None:
    """Returns the path of the newest checkpoint that `damage` finds nothing in; None if none is.

    Damaged ones that are newer are then set aside under other names, and `log` is called with a
    line about each, and about newer ones without an index.

    Raises:
      ValueError: all checkpoints of the folder are damaged; nothing has changed.
      OSError: a file cannot be read or renamed, though it may be undamaged.
    """
    for line in left_out(directory):
        log(line)
    damaged: dict[str, str] = {}
    for path in reversed(all_checkpoints(directory)):
        if not (reason := damage(path)):
            for other, why in damaged.items():
                aside = _set_aside(other)
                log(f"{other} is damaged: {why}; set aside as {aside}.")
            return path
        damaged[path] = reason
    if damaged:
        found = "; ".join(f"{os.path.basename(path)}: {why}" for path, why in damaged.items())
        raise ValueError(
            f"{directory}: no checkpoint is undamaged ({found}); restore one, or move them away to "
            "train from the start"
        )
    return None


def damage(path: str) -> str:
    """Returns why a checkpoint is not what was written, or "".

    Its files are compared with their digests, which must be those of all. A checkpoint of an
    earlier version has none: then all its values are read, which checks TensorFlow's checksums.

    Raises:
      OSError: a file cannot be read, though it may be undamaged.
    """
    digest = f"{path}{_DIGESTS_ENDING}"
    if os.path.isfile(digest):
        return _digest_difference(digest, _content(path))
    try:
        for _ in _tensors(path, _shapes(path)):
            pass
    except ValueError as error:
        return str(error)
    return ""


def find(location: str, log: Callable[[str], None]) -> str | None:
    """Returns a checkpoint given by its path, or the newest one of a folder; None if none is.

    A path may have the ending of the checkpoint's index. `log` is called with each of `left_out`.
    """
    location = location.removesuffix(".index")
    if os.path.isfile(f"{location}.index"):
        return location
    for line in left_out(location):
        log(line)
    return latest_checkpoint(location)


@contextlib.contextmanager
def opened(path: str) -> Iterator[tf.train.CheckpointReader]:
    """Opens a checkpoint of any program, given by its path without the endings of its files.

    Raises:
      OpError, ValueError: it is not readable.
    """
    if not re.search(r"[][*?\\]", path):
        yield tf.train.load_checkpoint(path)
        return
    # TensorFlow takes the path for a pattern, but escaped it opens no file: so it gets other names.
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, _NAME)
        for file in filter(os.path.isfile, (path, *_files(path))):
            os.symlink(os.path.abspath(file), plain + file.removeprefix(path))
        yield tf.train.load_checkpoint(plain)


def at_step(directory: str, step: int) -> str | None:
    """Returns the path of the folder's complete checkpoint of a step; None if there is none."""
    found = [path for path in all_checkpoints(directory) if step_of(path) == step]
    return found[0] if found else None


def step_of(path: str) -> int:
    """Returns the number of steps that were done when the checkpoint was written."""
    return int(path.rpartition("-")[2])


def settings_of(path: str) -> str:
    """Returns the text that the checkpoint was saved with; empty if there is none.

    Raises:
      ValueError: it is not readable.
    """
    if _SETTINGS not in _shapes(path):
        return ""
    (text,) = _tensors(path, [_SETTINGS])
    return text.decode()


def restore(path: str, state: State) -> None:
    """Reads every variable of `state` from the checkpoint.

    Raises:
      ValueError: variables are missing, left over, or of another shape.
    """
    stored = _stored(path)
    _check_shapes(path, stored, state)
    left_over = sorted(stored.keys() - state.keys())
    if left_over:
        raise ValueError(f"{path} also holds {_some(left_over)}, which this run does not have.")
    _read(path, state)


def is_of_suite(path: str) -> bool:
    """Returns whether a checkpoint was written by `save`.

    Raises:
      ValueError: it is not readable.
    """
    return "step" in _stored(path)


def has_averages(path: str) -> bool:
    """Returns whether a checkpoint holds moving averages of weights.

    Raises:
      ValueError: it is not readable.
    """
    return any(name.startswith("averages/") for name in _stored(path))


def read_weights(path: str, *, averages: bool) -> dict[str, np.ndarray]:
    """Returns the weights of a net, by variable name, from a training checkpoint.

    Args:
      path: path of the checkpoint.
      averages: return the moving average of each variable that has one.

    Raises:
      ValueError: the checkpoint is damaged, or there are no averages.
    """
    keys = _keys_of_weights(path, _stored(path), averages)
    return dict(zip(keys, _arrays(path, keys.values()), strict=True))


def restore_weights(path: str, weights: State, *, averages: bool) -> None:
    """Sets a model's weights to those of a training checkpoint.

    Args:
      path: path of the checkpoint.
      weights: the model's variables by name, which are set.
      averages: read the moving average of each variable that has one.

    Raises:
      ValueError: a variable is missing or has another shape, or there are no averages.
    """
    stored = _stored(path)
    keys = _keys_of_weights(path, stored, averages)
    wanted = {keys.get(name, f"variables/{name}"): v for name, v in weights.items()}
    _check_shapes(path, stored, wanted)
    _read(path, wanted)


def _write(path: str, state: State, settings: str) -> None:
    with tf.device("/CPU:0"):  # no other device can hold strings
        text = tf.Variable(settings, trainable=False)
    tf.train.Checkpoint(state=dict(state), settings=text).write(path)


def _shapes(path: str) -> dict[str, list[int]]:
    """Returns the shapes of all that is stored, by TensorFlow's names."""
    try:
        with opened(path) as reader:
            return reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a readable checkpoint: {reason}") from error


def _stored(path: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the stored variables by name."""
    stored = {}
    for key, shape in _shapes(path).items():
        if key.startswith("state/") and key.endswith(_SUFFIX):
            name = key.removeprefix("state/").removesuffix(_SUFFIX)
            # TensorFlow writes "." as ".." and "/" as ".S".
            stored[re.sub(r"\.([.S])", _unescaped, name)] = tuple(shape)
    return stored


def _unescaped(match: re.Match[str]) -> str:
    return "." if match[1] == "." else "/"


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


def _keys_of_weights(path: str, stored: Iterable[str], averages: bool) -> dict[str, str]:
    """Returns where each variable's weights stand in the checkpoint, by variable name."""
    groups: dict[str, dict[str, str]] = {"variables": {}, "averages": {}}
    for key in stored:
        group, _, name = key.partition("/")
        if group in groups:
            groups[group][name] = key
    if averages and not groups["averages"]:
        raise ValueError(
            f"{path} holds no moving averages; use the weights instead (--restore_avg_var=False)."
        )
    return groups["variables"] | (groups["averages"] if averages else {})


def _read(path: str, state: State) -> None:
    for variable, array in zip(state.values(), _arrays(path, state), strict=True):
        variable.assign(array)


def _arrays(path: str, keys: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the stored values of each key."""
    escaped = (key.replace(".", "..").replace("/", ".S") for key in keys)
    return _tensors(path, (f"state/{key}{_SUFFIX}" for key in escaped))


def _tensors(path: str, names: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the stored values of TensorFlow's names; a string is a value of type bytes."""
    try:
        with opened(path) as reader:
            for name in names:
                yield reader.get_tensor(name)
    except (tf.errors.OpError, IndexError) as error:  # IndexError: the file is too short
        raise ValueError(f"{path} is damaged: {str(error).splitlines()[0]}") from error


def _is_finite(variable: tf.Variable) -> bool:
    if not variable.dtype.is_floating:
        return True
    return bool(tf.reduce_all(tf.math.is_finite(variable)))


def _rotate(directory: str, keep: int, written: int) -> None:
    # Newer checkpoints of a lost run must not displace the one that was just written.
    others = [path for path in all_checkpoints(directory) if step_of(path) != written]
    for path in others[: max(0, len(others) - keep + 1)] if keep else []:
        for file in _files(path):
            with contextlib.suppress(FileNotFoundError):  # somebody else removed it
                os.remove(file)
    _write_state_file(directory)


def _is_path(path: str) -> bool:
    """Returns whether the name is one that `save` gives."""
    return bool(re.fullmatch(rf"{_NAME}-\d+", os.path.basename(path)))


def _content(path: str) -> list[str]:
    """Returns the names of the files that hold a checkpoint's values."""
    data = glob.glob(glob.escape(path) + ".data-*") or [f"{path}.data-00000-of-00001"]
    return [os.path.basename(file) for file in (f"{path}.index", *data)]


def _files(path: str) -> list[str]:
    """Returns a checkpoint's files, first the index: without it, the others count as none."""
    found = glob.glob(glob.escape(path) + ".*")
    return sorted(found, key=lambda file: (not file.endswith(".index"), file))


def _set_aside(path: str) -> str:
    """Gives a checkpoint's files other names; returns its new path."""
    directory, name = os.path.split(path)
    aside = os.path.join(directory, f"{_ASIDE}.{name}")
    for file in _files(path):
        os.replace(file, aside + file.removeprefix(path))
    _write_state_file(directory)  # this also brings the names to the disk
    return aside


def _write_state_file(directory: str) -> None:
    """Writes the file by which other tools find the newest checkpoint."""
    names = [os.path.basename(path) for path in all_checkpoints(directory)]
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    temporary = os.path.join(directory, f"checkpoint{_TEMPORARY}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        publish(temporary, os.path.join(directory, "checkpoint"))
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _write_digests(directory: str, name: str) -> None:
    """Writes the digests of all files of a folder to a file `name` in it; raises OSError."""
    lines = [f"{_digest(os.path.join(directory, f))}  {f}\n" for f in sorted(os.listdir(directory))]
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        file.writelines(lines)


def _digest_difference(path: str, names: Collection[str]) -> str:
    """Compares the files that the digests in the file `path` are of; returns what differs, or "".

    Args:
      path: the file of digests; the others are in its folder.
      names: files that it must list; otherwise a truncated list, or one of other files, would
        pass.

    Raises:
      OSError: a file cannot be read, though it may be unchanged.
    """
    with open(path, "rb") as file:
        entries = [line.decode(errors="replace").split() for line in file]
    if not entries or any(len(entry) != 2 or len(entry[0]) != 64 for entry in entries):
        return f"{os.path.basename(path)} holds no SHA-256 digests"
    if missing := sorted(set(names).difference(name for _, name in entries)):
        return f"{os.path.basename(path)} does not list {', '.join(missing)}"
    for digest, name in entries:
        try:
            if _digest(os.path.join(os.path.dirname(path), name)) != digest:
                return f"{name} has another SHA-256 digest than when it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return f"{name}: {error.strerror}"
    return ""


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_DIGESTED_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
