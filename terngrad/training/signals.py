"""Signals that ask a training to end, also while its steps wait for another process."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from terngrad import outputs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STUCK_SECS = 2.0  # after a signal; then the steps under way may wait for a lost process
_POLL_SECS = 1.0  # between attempts to save

# Called in a thread with the signal, and an event that is set when the main thread has ended the
# steps. The process may be killed soon, while its steps wait for another process.
Stuck = Callable[[signal.Signals, threading.Event], None]


@dataclasses.dataclass(frozen=True)
class _Handler:
    """A handler of this module's users, which a forked process must not inherit."""

    call: Callable[[int, Any], None]

    def __call__(self, number: int, frame: Any) -> None:
        self.call(number, frame)


def install(
    handler: Callable[[int, Any], None], signals: Sequence[signal.Signals] = SIGNALS
) -> dict[int, Any]:
    """Installs a handler, except for ignored signals; returns the earlier handlers by signal.

    A process that is forked meanwhile, such as one of a pool, ends at these signals as usual.
    """
    _reset_in_forked_processes()
    caught = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    own = _Handler(handler)
    return {number: signal.signal(number, own) for number in caught}  # nohup ignores SIGHUP


@functools.cache
def _reset_in_forked_processes() -> None:
    os.register_at_fork(after_in_child=_reset)  # once: there is no way to take it back


def _reset() -> None:
    own = [number for number in SIGNALS if isinstance(signal.getsignal(number), _Handler)]
    if own:
        signal.set_wakeup_fd(-1)  # its pipe is the parent's
    for number in own:
        is_ctrl_c = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)


class SignalThread:
    """A thread that handles signals also while the main thread is within TensorFlow."""

    def __init__(self, act: Callable[[signal.Signals], bool]) -> None:
        """Calls `act` with each of the signals, until it returns True or this is closed."""
        signals, self._written = os.pipe()
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written)

        def read() -> None:
            with open(signals, "rb", buffering=0) as file:
                while number := file.read(1):
                    if number[0] in SIGNALS and act(signal.Signals(number[0])):
                        return

        threading.Thread(target=read, daemon=True).start()

    def close(self) -> None:
        """Ends the handling of signals."""
        signal.set_wakeup_fd(-1)
        os.close(self._written)


def act_if_stuck(number: signal.Signals, is_over: threading.Event, stuck: Stuck) -> bool:
    """Calls `stuck` if the steps are not over 2 s after a signal; returns whether it did."""
    if is_over.wait(_STUCK_SECS):
        return False
    stuck(number, is_over)
    return True


def save_while_stuck(
    number: signal.Signals,
    is_over: threading.Event,
    save: Callable[[], str],
    say: Callable[[str], None],
    then: Callable[[], None] = lambda: None,
) -> None:
    """Saves and logs it repeatedly until the main thread has ended the steps.

    Args:
      number: the signal because of which this process must end.
      is_over: see `Stuck`.
      save: saves from this thread; returns a text for the log, or "".
      say: prints a line.
      then: called after each attempt.
    """
    said = None
    while not is_over.is_set():
        text = save()
        if text != said and not is_over.is_set():
            rest = "waits for the step under way"
            say(f"{number.name}: {f'{text}; {rest}' if text else rest}.")
            said = text
        then()
        is_over.wait(_POLL_SECS)


class StopRequest(contextlib.AbstractContextManager):
    """Turns SIGTERM, SIGHUP and Ctrl-C into a request to end after the steps under way.

    So is the loss of an output, see `outputs.lost_by`.
    """

    def __init__(
        self,
        end: Callable[[signal.Signals], NoReturn] | None = None,
        stuck: Stuck | None = None,
    ) -> None:
        """Starts without a request.

        Args:
          end: ends the process at a signal before its first step, when there is nothing to save. It
            is called in a thread of its own, because compiling may keep the main thread in
            TensorFlow for long. None = such a signal is a request, too.
          stuck: called in that thread if the block of this object has not ended 2 s after the first
            request.
        """
        self._asked: signal.Signals | None = None
        self._before: dict[int, Any] = {}
        self._end, self._stuck = end, stuck
        self._has_stepped = False
        self._is_over = threading.Event()
        self._thread: SignalThread | None = None  # calls `end` and `stuck`

    @property
    def signal(self) -> signal.Signals | None:
        """The signal of the request; None if there is none."""
        return self._asked or outputs.lost_by()

    @signal.setter
    def signal(self, number: signal.Signals | None) -> None:
        self._asked = number

    def __enter__(self) -> StopRequest:
        """Installs the signal handlers."""
        self._before = install(self._request)
        if self._end or self._stuck:
            self._thread = SignalThread(self._act)
        return self

    def __exit__(self, *exception) -> None:
        """Restores the previous signal handlers."""
        self._is_over.set()
        self._restore()

    def first_step_is_made(self) -> None:
        """Lets later signals be requests, also where there is an `end`."""
        self._has_stepped = True
        if not self._stuck:
            self._close_thread()

    def _restore(self) -> None:
        self._close_thread()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _close_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread:
            thread.close()

    def _act(self, number: signal.Signals) -> bool:
        if self._end and not self._has_stepped:
            self._end(number)
        return self._stuck is not None and act_if_stuck(number, self._is_over, self._stuck)

    def _request(self, number: int, frame: Any) -> None:
        del frame
        if self._asked:  # the second signal restores the handlers, so that a third ends at once
            self._restore()
        self._asked = signal.Signals(number)
