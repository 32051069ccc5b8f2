"""Ctrl-C, SIGTERM and SIGHUP while `model.fit` runs on several processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECOND_SECS = 1.0  # after which a second signal is meant
_STUCK_SECS = 2.0  # after a signal; then the step under way may wait for a lost process


class Signals:
    """These signals during `fit`: the first is noted, a second one ends the program."""

    def __init__(self) -> None:
        self._fit: CodeType | None = None
        self._before: dict[int, Any] = {}
        self._seen: dict[int, float] = {}  # when
        self._terminals: list[int] = []  # outputs that a closed terminal ends
        self._is_over = threading.Event()
        self._watched: int | None = None  # writes to the thread that calls `stuck`

    def catch(
        self, fit: CodeType, stuck: Callable[[signal.Signals, threading.Event], None] | None = None
    ) -> None:
        """Notes signals until `leave`, while the function with this code runs.

        Where it still runs 2 s after one, a thread calls `stuck` with the signal and an event that
        is set by `leave`: the main thread may wait for another process, in a step.
        """
        self._fit = fit
        self._seen.clear()
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                    self._before[number] = signal.signal(number, self._note)
            if stuck and (own := signal.set_wakeup_fd(-1)) == -1:
                self._watch(stuck)
            elif stuck:  # the program learns of signals in that way itself
                signal.set_wakeup_fd(own)

    def seen(self) -> list[float]:
        return [float(number in self._seen) for number in SIGNALS]

    def leave(self, forget: bool = False) -> None:
        """Restores the program's handlers, which get what nobody has acted upon."""
        self._is_over.set()
        if self._watched is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._watched)
            self._watched = None
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        pending = self._seen if self._before and not forget else ()
        self._before = {}
        for number in list(pending):
            del self._seen[number]
            os.kill(os.getpid(), number)

    def _watch(self, stuck: Callable[[signal.Signals, threading.Event], None]) -> None:
        """Starts a thread that learns of signals also while the main thread is in TensorFlow."""
        signals, self._watched = os.pipe()
        os.set_blocking(self._watched, False)
        signal.set_wakeup_fd(self._watched)
        is_over = self._is_over = threading.Event()

        def wait() -> None:
            with open(signals, "rb", buffering=0) as file:
                while number := file.read(1):
                    if number[0] in SIGNALS:
                        if not is_over.wait(_STUCK_SECS):
                            stuck(signal.Signals(number[0]), is_over)
                        return

        threading.Thread(target=wait, daemon=True).start()

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self._is_in_fit(frame):  # an error ended it, of which Keras tells no callback
            self._seen[number] = now
            self.leave()
            return
        if number in self._seen:
            # A launcher may pass on what the terminal sent already.
            if now - self._seen[number] > _SECOND_SECS:
                self.leave()
            return
        self._seen[number] = now
        if number == signal.SIGHUP:
            for terminal in self._terminals:  # the progress bar would fail before anybody saves
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        with contextlib.suppress(OSError, RuntimeError):  # also within another print
            print("stopping after this step ...", file=sys.stderr, flush=True)

    def _is_in_fit(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self._fit:
            frame = frame.f_back
        return frame is not None
