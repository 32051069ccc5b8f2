"""Saves a model at a signal or a loss: after a step, or while one waits for another process.

A loss ends this process from another thread. `WriterLock` lets that thread wait until the callbacks
of the main thread have written their files: Keras overwrites a checkpoint in its place.
"""

from __future__ import annotations

import contextlib
import functools
import math
import signal
import string
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from terngrad.library.keras.internals import save_checkpoint
from terngrad.training.sequence_lock import SequenceLock
from terngrad.training.signals import save_while_stuck

_HOOKS = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")]
_WRITE_SECS = 60.0  # less than terngrad.launch gives the processes that it asks to end


def save(
    callbacks: Sequence[keras.callbacks.Callback],
    epoch: int,
    batch: int,
    logs: Mapping[str, Any],
    *,
    is_epoch_over: bool = False,
) -> list[str]:
    """Lets the ModelCheckpoints save amid an epoch; returns what they save to.

    Those of the best do not: it is known only at an epoch's end. Metrics of that end, such as
    val_loss, are nan in the file's name.

    Args:
      callbacks: those of `fit`.
      epoch: index of the epoch.
      batch: index of the last batch in it.
      logs: metrics so far.
      is_epoch_over: whether those that save at its end have done so.
    """
    saved = []
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.ModelCheckpoint) or callback.save_best_only:
            continue
        if not (is_epoch_over and callback.save_freq == "epoch"):
            names = {name for _, name, _, _ in string.Formatter().parse(callback.filepath) if name}
            unknown = dict.fromkeys(names - {"epoch", "batch", *logs}, math.nan)
            saved.append(save_checkpoint(callback, epoch, batch, {**logs, **unknown}))
    return saved


class WriterLock:
    """Is held by the thread that writes files of a `fit`; it may enter it again."""

    def __init__(self, limit_secs: float = _WRITE_SECS) -> None:
        """Makes the lock of a `fit` that runs in the calling thread.

        Args:
          limit_secs: how long the end of this process waits for a callback that writes.
        """
        self._limit_secs = limit_secs
        self._fit = threading.get_ident()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Waits until no other thread writes."""
        self._lock.acquire()

    def __exit__(self, *exception) -> None:
        """Lets other threads write."""
        self._lock.release()

    def at_end(self, save: Callable[[], str]) -> str:
        """Calls `save` once nobody writes, and lets no callback begin to: the process ends now.

        Returns what `save` does, a text for the log. A callback that writes for longer than the
        limit, or for ever, is not waited for.
        """
        if not self._lock.acquire(timeout=self._limit_secs):
            return f"a callback has written for {self._limit_secs:g} s: its file may be damaged"
        try:
            return save()
        finally:
            if threading.get_ident() == self._fit:  # it goes on with an error
                self._lock.release()


class Delegate(keras.callbacks.Callback):
    """Takes the place of a callback in the list of `fit`; calls its hooks, but those of its own."""

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        super().__init__()
        self._callback = callback
        for name in _HOOKS:
            if getattr(type(self), name) is getattr(keras.callbacks.Callback, name):
                setattr(self, name, functools.partial(self._call, name))

    def set_model(self, model: keras.Model) -> None:
        """Gives the model to the callback, too."""
        super().set_model(model)
        self._callback.set_model(model)

    def set_params(self, params: dict[str, Any]) -> None:
        """Gives the parameters of `fit` to the callback, too."""
        super().set_params(params)
        self._callback.set_params(params)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        getattr(self._callback, name)(*args, **kwargs)  # which the callback may have replaced


class Writer(Delegate):
    """A callback that writes files: its hooks hold a lock."""

    def __init__(self, callback: keras.callbacks.Callback, lock: WriterLock) -> None:
        """Takes the place of a callback."""
        super().__init__(callback)
        self._lock = lock

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            super()._call(name, *args, **kwargs)


class StuckSaver:
    """Saves a model in another thread, while the main thread waits in a step."""

    def __init__(
        self, sequence: SequenceLock, save: Callable[[], list[str]], lock: WriterLock
    ) -> None:
        """Saves nothing yet.

        Args:
          sequence: knows whether the model is that of a whole step.
          save: saves it; returns the paths.
          lock: of the files of this `fit`.
        """
        self._sequence, self._save, self._saving = sequence, save, lock
        self._is_stepping = False
        self._last: tuple[int, str] | None = None  # position of the last save, and its text

    @property
    def is_stepping(self) -> bool:
        """Whether the main thread is in a step."""
        return self._is_stepping

    def begin_step(self) -> None:
        """Notes that the main thread begins a step."""
        self._is_stepping = True

    def end_step(self) -> None:
        """Notes that it has ended a whole step; waits until no other thread saves."""
        with self._saving:
            self._is_stepping = False
            self._sequence.end()

    def save(self) -> str:
        """Saves, unless it was saved or the main thread can save; returns a text for the log."""
        with self._saving:
            if not self._is_stepping:
                return ""
            position = self._sequence.position()
            if position is None:
                return "not saved since the last checkpoint: the updates of a step are under way"
            if self._last is None or self._last[0] != position:
                try:
                    paths = self._save()
                except Exception as error:  # of a callback, which may be the program's own
                    return f"not saved since the last checkpoint: {' '.join(str(error).split())}"
                self._last = position, f"saved {' and '.join(paths)}" if paths else ""
            return self._last[1]

    def save_while_stuck(self, number: signal.Signals, is_over: threading.Event) -> None:
        """Saves and logs it repeatedly until the main thread has ended the steps."""
        save_while_stuck(number, is_over, self.save, _say)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(line, file=sys.stderr, flush=True)
