"""Saves what a backup of BackupAndRestore lacks, the state of callbacks and seeds, beside it."""

from __future__ import annotations

import io
import json
import os
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.files import publish, sync
from terngrad.library.group import Group
from terngrad.library.keras import internals, program_warnings
from terngrad.library.keras.internals import REMEMBERED, SET_BY_FIT, is_of_keras
from terngrad.library.keras.saving import Delegate
from terngrad.library.keras.state import seed_states

_START = "the start of fit"
_ATTRIBUTE = "saved_attributes"  # of a callback's class: the names of what it remembers


class FitState:
    """The state of a worker's callbacks and random layers, saved for a `fit` that resumes."""

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        backup: keras.callbacks.BackupAndRestore | None,
    ) -> None:
        """Saves the state of one `fit`, if it has a backup."""
        self._model = model
        self._callbacks = dict(_named(callbacks))
        self._folder = f"{os.fspath(backup.backup_dir)}-state" if backup else ""
        self._at_start: dict[str, dict[str, Any]] = {}

    def save(self, epoch: int) -> None:
        """Writes the state at the start of an epoch, before the backup is made."""
        seeds = [seed.numpy() for seed in seed_states(self._model)]
        content = {"states": self._now(), "changed": self._changed(), "seeds": seeds}
        if not any(content.values()):
            return
        tf.io.gfile.makedirs(self._folder)
        path = os.path.join(self._folder, f"{epoch}.npz")
        with tf.io.gfile.GFile(f"{path}.new", "wb") as file:
            file.write(_to_bytes(content))
        _publish(f"{path}.new", path)
        kept = {f"{each}.npz" for each in (epoch - 1, epoch)}  # the backup may be the older one
        for old in set(tf.io.gfile.listdir(self._folder)) - kept:
            tf.io.gfile.remove(os.path.join(self._folder, old))

    def restore(self, group: Group, epoch: int | None) -> bool:
        """Copies the chief's state and seeds to all workers; notes which attributes change.

        Where workers may come and go, only the chief restores its own. Returns whether this worker
        resumes.

        Args:
          group: the processes, which all call this.
          epoch: the epoch at which the chief resumes; None = it has found no backup.

        Raises:
          AttributeError: a custom callback lacks what it names as saved.
          TypeError: it is of a type that cannot be saved.
        """
        found = self._read(epoch) if group.is_chief and epoch is not None else b""
        is_resumed, size = epoch is not None, len(found)
        if not group.is_elastic:
            is_resumed, size = group.all_gather_object([is_resumed, size], what=_START)[0]
        if size:
            content = tf.Variable(np.frombuffer(found.ljust(size), np.uint8), trainable=False)
            if not group.is_elastic:
                group.broadcast([content])
            self._assign(_from_bytes(content.numpy().tobytes()), group)
        elif is_resumed:
            self._warn_of_anew(self._callbacks)
        if self._folder:
            self._at_start = {
                name: dict(_fingerprints(each))
                for name, each in self._callbacks.items()
                if not is_of_keras(type(each))
            }
            _to_bytes({"states": self._now()})  # so that errors show now
        return is_resumed

    def _read(self, epoch: int) -> bytes:
        path = os.path.join(self._folder, f"{epoch}.npz")
        if not tf.io.gfile.exists(path):
            return b""
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()

    def delete(self) -> None:
        """Deletes all that was saved."""
        if self._folder and tf.io.gfile.exists(self._folder):
            tf.io.gfile.rmtree(self._folder)

    def _assign(self, content: dict[str, Any], group: Group) -> None:
        for seed, value in zip(seed_states(self._model), content["seeds"], strict=False):
            seed.assign(value)
        for name, state in content["states"].items():
            for attribute, value in state.items():
                if name in self._callbacks:
                    setattr(self._callbacks[name], attribute, value)
        missing = [name for name in self._callbacks if name not in content["states"]]
        self._warn_of_anew(missing)
        for name, attributes in content["changed"].items():
            if group.is_chief:
                names = "".join(f'"{each}", ' for each in attributes)
                program_warnings.warn(
                    f"callback {name} had changed {', '.join(attributes)} before the backup and "
                    "begins anew, so this training may differ from an undisturbed one: with "
                    f"{_ATTRIBUTE} = ({names.rstrip()}) in its class, the backup has them, too"
                )

    def _warn_of_anew(self, names: Sequence[str]) -> None:
        anew = [name for name in names if _remembered(self._callbacks[name])]
        if anew:
            program_warnings.warn(
                f"callbacks begin anew, so this training may differ from an undisturbed one: the "
                f"chief's backup does not have what these remember: {', '.join(anew)}"
            )

    def _now(self) -> dict[str, dict[str, Any]]:
        """Returns what callbacks remember now, by their names."""
        states = {name: _state(name, each) for name, each in self._callbacks.items()}
        return {name: state for name, state in states.items() if state}

    def _changed(self) -> dict[str, list[str]]:
        """Returns attributes of callbacks that have changed in this fit and are not saved."""
        found = {}
        for name, before in self._at_start.items():
            now = dict(_fingerprints(self._callbacks[name]))
            differ = [field for field in now if now[field] != before.get(field)]
            found |= {name: differ} if differ else {}
        return found


class BackupFiles:
    """The files of a BackupAndRestore, which hold a whole backup at every moment.

    Keras overwrites its only backup, first the weights and then their epoch. This lets it write
    both under other names. Once both are on the disk, the epoch is renamed to `saved.json`. From
    then on the new backup counts: what is left are further renames, which a program that is started
    again completes.
    """

    def __init__(self, backup: keras.callbacks.BackupAndRestore) -> None:
        """Changes nothing yet."""
        self._backup = backup
        self._paths = internals.backup_paths(backup)
        in_folder = lambda name: os.path.join(os.fspath(backup.backup_dir), name)
        self._new = internals.BackupPaths(in_folder("saving.weights.h5"), in_folder("saving.json"))
        self._saved = in_folder("saved.json")

    def save(self, hook: Callable[..., None], *arguments: Any) -> None:
        """Calls a hook of the BackupAndRestore, which may save."""
        internals.set_backup_paths(self._backup, self._new)
        try:
            hook(*arguments)
        finally:
            internals.set_backup_paths(self._backup, self._paths)
        if tf.io.gfile.exists(self._new.metadata):
            _sync(self._new.weights)
            _publish(self._new.metadata, self._saved)
            self._complete()

    def restore(self, hook: Callable[..., None], *arguments: Any) -> bool:
        """Calls the hook of the BackupAndRestore that restores; returns whether there is a backup.

        Raises:
          ValueError: the backup is damaged.
        """
        self._complete()
        for path in self._new:  # of a save that was interrupted
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
        folder = self._backup.backup_dir
        remedy = f"copy the folder from elsewhere, or delete {folder} to begin anew"
        found = [tf.io.gfile.exists(path) for path in self._paths]
        if any(found) and not all(found):
            raise ValueError(
                f"BackupAndRestore: {self._paths[found.index(False)]} is missing, so "
                f"{os.path.basename(self._paths[found.index(True)])} cannot be used: {remedy}"
            )
        try:
            hook(*arguments)
        except (OSError, KeyError, UnicodeDecodeError, json.JSONDecodeError) as error:
            why = " ".join(str(error).split())
            raise ValueError(
                f"BackupAndRestore: {' or '.join(self._paths)} cannot be read: {why}; {remedy}"
            ) from error
        return tf.io.gfile.exists(self._paths.metadata)

    def _complete(self) -> None:
        """Gives a whole new backup its names."""
        if not tf.io.gfile.exists(self._saved):
            return
        weights, metadata = self._paths
        # The weights come first, so that `saved.json` is there until all is done.
        for new, path in ((self._new.weights, weights), (self._saved, metadata)):
            if tf.io.gfile.exists(new):
                if self._backup.double_checkpoint and tf.io.gfile.exists(path):
                    _publish(path, f"{path}.bkp")
                _publish(new, path)


class BackupPlaceholder(keras.callbacks.Callback):
    """Restores a backup at the place of BackupAndRestore; `BackupSaver` saves it.

    Attributes:
      epoch: at which `fit` resumes; None if there was no backup.
    """

    def __init__(self, backup: keras.callbacks.BackupAndRestore) -> None:
        super().__init__()
        self._backup = backup
        self.epoch: int | None = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Restores the backup, if there is one."""
        has_backup = BackupFiles(self._backup).restore(self._backup.on_train_begin, logs)
        self.epoch = int(internals.initial_epoch(self._backup.model)) if has_backup else None


class BackupSaver(Delegate):
    """Saves the backup after all callbacks, so that it has what they change at an epoch's end."""

    def __init__(
        self, backup: keras.callbacks.BackupAndRestore, save: Callable[[int], None]
    ) -> None:
        """Calls `save` with the number of the next epoch before a backup at the end of an epoch."""
        super().__init__(backup)
        self._files = BackupFiles(backup)
        self._save = save

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Restores nothing: `BackupPlaceholder` has done so."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Makes a backup if `save_freq` is a number of batches."""
        if self._callback.save_freq == "epoch":
            self._callback.on_train_batch_end(batch, logs)
        else:
            self._files.save(self._callback.on_train_batch_end, batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Calls `save`, then makes the backup."""
        self._save(epoch + 1)
        self._files.save(self._callback.on_epoch_end, epoch, logs)


def _publish(temporary: str, path: str) -> None:
    """Renames a file that is written, also on storage that only TensorFlow knows."""
    if _is_remote(path):
        tf.io.gfile.rename(temporary, path, overwrite=True)
    else:
        publish(temporary, path)


def _sync(path: str) -> None:
    if not _is_remote(path):
        sync(path)


def _is_remote(path: str) -> bool:
    return "://" in path


def _named(
    callbacks: Sequence[keras.callbacks.Callback],
) -> Iterator[tuple[str, keras.callbacks.Callback]]:
    """Yields names that a resumed program gives again, with a number from the second on."""
    counts = Counter()
    for each in callbacks:
        name = type(each).__name__
        counts[name] += 1
        yield name + (f" {counts[name]}" if counts[name] > 1 else ""), each


def _remembered(callback: keras.callbacks.Callback) -> list[str]:
    """Returns the names of what a callback remembers, as far as it is known."""
    classes = [each.__name__ for each in type(callback).__mro__ if is_of_keras(each)]
    names = [name for each in classes for name in REMEMBERED.get(each, ())]
    return [*names, *getattr(callback, _ATTRIBUTE, ())]


def _state(name: str, callback: keras.callbacks.Callback) -> dict[str, Any]:
    found = {}
    for attribute in _remembered(callback):
        if not hasattr(callback, attribute):
            if attribute in getattr(callback, _ATTRIBUTE, ()):
                raise AttributeError(
                    f"callback {name}: {_ATTRIBUTE} names {attribute}, which it does not have"
                )
            continue
        found[attribute] = getattr(callback, attribute)
    return found


def _fingerprints(callback: keras.callbacks.Callback) -> Iterator[tuple[str, Any]]:
    """Yields attributes that may change, with a fingerprint of each."""
    is_subclass = any(each.__name__ in REMEMBERED for each in type(callback).__mro__)
    for field, value in vars(callback).items():
        if field in (*SET_BY_FIT, *_remembered(callback)) or (is_subclass and field[0] == "_"):
            continue
        if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
            yield field, value
        elif isinstance(value, (list, tuple, dict, set, np.ndarray)):
            try:
                yield field, _checksum(value)
            except Exception:  # it holds a model or another thing that cannot be written
                continue


def _checksum(value: Any) -> int:
    """Returns the checksum of a pickled value, which is nowhere as a whole."""
    file = _ChecksumFile()
    # Arrays are not copied into the pickle: it leaves out the buffers that the function takes.
    take = lambda buffer: file.write(buffer.raw())
    pickle.Pickler(file, protocol=5, buffer_callback=take).dump(value)
    return file.value


class _ChecksumFile:
    """A file that keeps nothing but the checksum of what is written."""

    def __init__(self) -> None:
        self.value = 0

    def write(self, data: bytes | memoryview) -> None:
        self.value = zlib.crc32(data, self.value)


def _to_bytes(content: dict[str, Any]) -> bytes:
    arrays: list[np.ndarray] = []
    states = {
        name: {field: _packed(f"{name}.{field}", value, arrays) for field, value in state.items()}
        for name, state in content["states"].items()
    }
    seeds = _packed("seeds", content.get("seeds", []), arrays)
    text = json.dumps({**content, "states": states, "seeds": seeds})
    file = io.BytesIO()
    np.savez(file, content=np.array(text), **{str(i): array for i, array in enumerate(arrays)})
    return file.getvalue()


def _from_bytes(held: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(held), allow_pickle=False) as file:
        content = json.loads(str(file["content"]))
        states = content["states"].items()
        content["states"] = {
            name: {field: _unpacked(value, file) for field, value in state.items()}
            for name, state in states
        }
        content["seeds"] = _unpacked(content["seeds"], file)
    return content


def _packed(name: str, value: Any, arrays: list[np.ndarray]) -> Any:
    """Returns a value as JSON has it; arrays are appended to a list."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(name, part, arrays) for part in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _packed(name, part, arrays) for key, part in value.items()}}
    if isinstance(value, (np.ndarray, tf.Tensor, tf.Variable, keras.Variable)):
        array = keras.ops.convert_to_numpy(value)
        if array.dtype.kind not in "OSU":
            arrays.append(array)
            return {"array": len(arrays) - 1, "dtype": array.dtype.name}
    raise TypeError(
        f"the backup cannot save {name}, which is {type(value).__name__}; allowed are numbers, "
        "strings, None, arrays of numbers, and lists, tuples and dicts of these"
    )


def _unpacked(value: Any, arrays: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array, dtype = arrays[str(value["array"])], np.dtype(value["dtype"])
        return array if array.dtype == dtype else array.view(dtype)  # NumPy's files lack bfloat16
    ((kind, parts),) = value.items()
    if kind == "dict":
        return {key: _unpacked(part, arrays) for key, part in parts.items()}
    return {"list": list, "tuple": tuple}[kind](_unpacked(part, arrays) for part in parts)
