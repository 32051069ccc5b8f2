"""Figures of a parameter server for TensorBoard."""

import os
from collections.abc import Callable, Mapping

import tensorflow as tf


class FigureWriter:
    """Writes scalars into event files; no more once it could not: a training is worth more."""

    def __init__(self, directory: str | None, tell: Callable[[str], None]) -> None:
        """Into `directory`, if there is one, from the first call on; `tell` takes lines."""
        self._directory, self._tell = directory, tell
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes all of them at a step."""
        if not self._directory:
            return
        try:
            self._write(scalars, step)
        except (OSError, tf.errors.OpError) as error:
            why = " ".join(str(error).split())
            self._tell(f"No more figures are written to {self._directory}: {why}")
            self._directory = None

    def _write(self, scalars: Mapping[str, float], step: int) -> None:
        if self._writer is None:
            os.makedirs(self._directory, exist_ok=True)
            self._writer = tf.summary.create_file_writer(self._directory)
        with self._writer.as_default(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        self._writer.flush()
