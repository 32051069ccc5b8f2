"""Saves a training: between steps, at a loss, and while its steps wait for another worker."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from inception.training.looping import say
from inception.training.preparation import PreparedTraining
from inception.training.restoring import memory_folder
from slim.datasets.files import UnreadableError
from slim.datasets.records import DamageError
from terngrad.cluster.errors import FinishedError, MembershipError
from terngrad.exchange.parameter_server.worker_exit import LeaveTrainingError
from terngrad.training import checkpoints
from terngrad.training.errors import NotFiniteError
from terngrad.training.signals import StopRequest, save_while_stuck

_LONGEST_SAVE_SECS = 60.0  # of the main thread, which may save when a loss ends this process


class Saver:
    """Saves the training of this process; any thread may call.

    The chief writes its checkpoints, or after its loss the first worker that is left. Every worker
    saves the memory of its own codecs.
    """

    def __init__(self, prepared: PreparedTraining) -> None:
        """Saves nothing yet."""
        self._prepared = prepared
        self._saving = threading.Lock()
        self._last: tuple[int, str | None] | None = None  # step and result of the last save
        if prepared.checkpoint:
            self._last = checkpoints.step_of(prepared.checkpoint), prepared.checkpoint

    def save(self, step: int) -> str | None:
        """Saves the present state, of this step; returns the checkpoint's path if this one saves.

        Raises:
          NotFiniteError, OSError: see `checkpoints.save`.
        """
        with self._saving:
            return self._save(step, self._prepared.training.state)

    def save_copy(self) -> str:
        """Saves a copy of the state, in another thread than that of the steps.

        Returns a text for the log; "" if another worker writes the checkpoint.
        """
        if not self._saving.acquire(timeout=_LONGEST_SAVE_SECS):
            return self._unsaved("another save takes too long")
        try:
            return self._copy()
        except (NotFiniteError, OSError, tf.errors.OpError) as error:
            return self._unsaved(" ".join(str(error).split()))
        finally:
            self._saving.release()

    def save_alone(self) -> str:
        """Does `save_copy` in a process alone, also after a step that failed; "" in others."""
        return "" if self._prepared.connection else self.save_copy()  # a copy is of a whole step

    def save_while_stuck(self, number: signal.Signals, is_over: threading.Event) -> None:
        """Saves and logs it while the steps wait for another worker, until the training is over.

        With parameter servers the training of all ends where that takes too long.

        Args:
          number: the signal because of which this process must end.
          is_over: whether the main thread has saved.
        """
        prepared = self._prepared
        why = f"worker {prepared.group.rank} was asked to end by {number.name}, and waits in vain"
        give_up = lambda: prepared.connection.give_up(why, alone=prepared.group.may_leave)
        save_while_stuck(number, is_over, self.save_copy, say, give_up)

    @contextlib.contextmanager
    def at_a_loss(self, stop: StopRequest) -> Iterator[None]:
        """Saves the steps made so far if a worker or ps is lost for good within the block.

        So it does after a bad record of a process alone. Others end the training of all, and the
        first one that can saves.

        Raises:
          DamageError, UnreadableError: the bad record or file, and what was saved.
          MembershipError: the loss, and what was saved.
          SystemExit: with the signal's status, if this process was asked to end, too.
        """
        try:
            yield
        except FinishedError:
            raise
        except MembershipError as error:
            try:
                saved = self.save(int(self._prepared.training.step)) if self._is_finite() else None
            except OSError as second:
                raise MembershipError(f"{error}; nothing is saved: {second}") from error
            text = f"{error}; saved {saved}" if saved else str(error)
            if stop.signal:
                say(f"{stop.signal.name}: {text}.")
                end = LeaveTrainingError if self._prepared.group.may_leave else SystemExit
                raise end(128 + stop.signal) from error
            raise MembershipError(text) from error
        except (DamageError, UnreadableError) as error:
            saved = self.save_alone()
            raise type(error)(f"{error}; {saved}" if saved else str(error)) from None

    def _copy(self) -> str:
        prepared = self._prepared
        connection, training = prepared.connection, prepared.training
        if self._last and self._last[0] == int(training.step):  # a copy takes time and memory
            return f"saved {self._last[1]}" if self._last[1] else ""
        variables = {**training.state, **training.memory.variables}
        copied = training.sequence.copy(variables, lambda: connection.version if connection else 0)
        if copied is None:
            return self._unsaved("the updates of a step are under way")
        if (step := int(copied["step"])) == 0:
            return ""
        path = self._save(step, copied)
        return f"saved {path}" if path else ""

    def _save(self, step: int, values: Mapping[str, tf.Variable]) -> str | None:
        """Saves, unless the last save was of this step; `values` may hold those of the memory."""
        prepared, config = self._prepared, self._prepared.config
        is_saver = not prepared.connection or prepared.connection.is_saver
        if self._last and self._last[0] == step and (self._last[1] or not is_saver):
            return self._last[1]
        memory, training = prepared.training.memory, prepared.training
        copies = values if values is not training.state else None
        memory.save(
            memory_folder(config, prepared.group.rank), step, config.keep_checkpoints, copies
        )
        path = None
        if is_saver:
            os.makedirs(config.train_dir, exist_ok=True)
            state = {name: values[name] for name in training.state}
            path = checkpoints.save(
                config.train_dir, state, step, config.keep_checkpoints, prepared.settings
            )
        self._last = step, path
        return path

    def _unsaved(self, why: str) -> str:
        newest = checkpoints.latest_checkpoint(self._prepared.config.train_dir)
        return f"not saved since step {checkpoints.step_of(newest) if newest else 0}: {why}"

    def _is_finite(self) -> bool:
        """Whether the state is finite: a worker may be lost because the training diverged."""
        values = (v.numpy() for v in self._prepared.training.state.values() if v.dtype.is_floating)
        return all(np.isfinite(value).all() for value in values)
