"""Profiles of some steps of a training, for TensorBoard."""

from __future__ import annotations

import tensorflow as tf


class Profiler:
    """Profiles the steps between two, or to the end of the run if that comes first."""

    def __init__(self, steps: tuple[int, int] | None, directory: str) -> None:
        """From the first of `steps` to the second; None = never. Writes to `directory`."""
        self._first, self._last = steps or (-1, -1)
        self._directory = directory
        self._running = False

    def at(self, step: int) -> None:
        """To be called before each call that makes steps, with the steps done."""
        if not self._running and self._first <= step < self._last:
            tf.profiler.experimental.start(self._directory)
            self._running = True
        elif step >= self._last:
            self.close()

    def close(self) -> None:
        """Ends the profile, if one is under way."""
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            print(f"Profile for TensorBoard: {self._directory}", flush=True)
