"""Profiles of a range of steps, for TensorBoard."""

from __future__ import annotations

import tensorflow as tf


class Profiler:
    """Profiles a range of steps, or as many of it as the run makes."""

    def __init__(self, steps: tuple[int, int] | None, directory: str) -> None:
        """Profiles from the first of `steps` to the second (None = never), to `directory`."""
        self._first, self._last = steps or (-1, -1)
        self._directory = directory
        self._running = False

    def at(self, step: int) -> None:
        """Starts or ends the profile; call it before the next steps with the number done."""
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
