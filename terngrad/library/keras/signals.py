"""Ctrl-C, SIGTERM and SIGHUP while `model.fit` runs on several processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from terngrad.outputs import discard
from terngrad.training.signals import SIGNALS, SignalThread, Stuck, act_if_stuck, install

_SECOND_SECS = 1.0  # later signals are from the user, not copies of the first


class Signals:
    """These signals during `fit`: the first is noted, a second one ends the program."""

    def __init__(self, stops: str = "this step") -> None:
        """Notes nothing yet.

        Args:
          stops: when the first signal stops `fit`, for a line on the terminal.
        """
        self._stops = stops
        self._fit: CodeType | None = None
        self._before: dict[int, Any] = {}
        self._seen: dict[int, float] = {}  # when
        self._terminals: list[int] = []  # outputs that a closed terminal ends
        self._is_over = threading.Event()
        self._thread: SignalThread | None = None  # calls `stuck`

    def catch(self, fit: CodeType, stuck: Stuck | None = None, *, but: Sequence[int] = ()) -> None:
        """Notes signals until `leave`, while the function with this code runs.

        Where it still runs 2 s after one, a thread calls `stuck` with the signal and an event that
        is set by `leave`: the main thread may wait for another process, in a step. The signals in
        `but` are left to the program.
        """
        self._fit = fit
        self._seen.clear()
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        if threading.current_thread() is threading.main_thread() and not self._before:
            self._before = install(self._note, [each for each in SIGNALS if each not in but])
            if stuck and (own := signal.set_wakeup_fd(-1)) == -1:
                is_over = self._is_over = threading.Event()
                self._thread = SignalThread(lambda number: act_if_stuck(number, is_over, stuck))
            elif stuck:  # the program learns of signals in that way itself
                signal.set_wakeup_fd(own)

    def seen(self) -> list[float]:
        """Returns, for each of `SIGNALS`, 1 if it was noted, else 0: for sums over processes."""
        return [float(number in self._seen) for number in SIGNALS]

    def leave(self, forget: bool = False) -> None:
        """Restores the program's handlers, and passes pending signals to them."""
        self._is_over.set()
        if self._thread:
            self._thread.close()
            self._thread = None
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        pending = self._seen if self._before and not forget else ()
        self._before = {}
        for number in list(pending):
            del self._seen[number]
            os.kill(os.getpid(), number)

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
                discard(terminal)
        with contextlib.suppress(OSError, RuntimeError):  # also within another print
            # In one write: another thread may be ending this process with a line.
            print(f"stopping after {self._stops} ...\n", end="", file=sys.stderr, flush=True)

    def _is_in_fit(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not self._fit:
            frame = frame.f_back
        return frame is not None
