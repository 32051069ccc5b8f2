"""How a process leaves the others, and what it shows of the error that ends it."""

from __future__ import annotations

import atexit
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import note_shown, output_lock, was_shown
from terngrad.exchange.operation_errors import LOSSES, OperationError, reason

_SOON_SECS = 3.0  # time in which a closed connection is noticed


class Leaving:
    """Leaves the others at the end of a group's block, or of the program.

    Attributes:
      stopped_by: the error that ended `fit` where all were interrupted after the same step, so that
        none has failed.
    """

    def __init__(
        self,
        label: str,
        membership: contextlib.AbstractContextManager | None,
        was_interrupted: Callable[[], bool],
        forget: Callable[[], None],
    ) -> None:
        """Takes `sys.excepthook` if there are others.

        Args:
          label: this process in messages.
          membership: leaves the others when it is left; None = there are none.
          was_interrupted: returns whether a step was abandoned because a process was lost.
          forget: called before this process leaves.
        """
        self.stopped_by: BaseException | None = None
        self._label = label
        self._membership = membership
        self._was_interrupted = was_interrupted
        self._forget = forget
        self._shown: BaseException | None = None  # the last error that this has shown
        if membership:
            atexit.register(self._end)
            self._show, sys.excepthook = sys.excepthook, self._show_error

    def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `Group.__exit__`."""
        membership, self._membership = self._membership, None
        if membership:
            atexit.unregister(self._end)
            if isinstance(error, OperationError) and not self._is_loss(error):
                kind, error = RuntimeError, _own(error)
            if error and error is self.stopped_by:
                kind, error = SystemExit, SystemExit()  # the others may still save
            self._forget()
            membership.__exit__(kind, error, traceback)

    @contextlib.contextmanager
    def _showing_soon(self, error: BaseException, *, is_known: bool) -> Iterator[None]:
        """Shows an error while this process still waits to learn which process was lost, if any.

        With `is_known` a process was lost, and a line says so.
        """

        def show() -> None:
            with output_lock:
                if is_known:
                    away = "a worker or parameter server is away"
                    print(f"{self._label}: a step was abandoned: {away}.", file=sys.stderr)
                else:
                    self._show(type(error), error, error.__traceback__)
            self._shown = error
            why = "to learn whether another process was lost"
            print(f"{self._label} waits for its time-out {why}.", file=sys.stderr, flush=True)

        timer = threading.Timer(_SOON_SECS, show)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join(_SOON_SECS)  # it may be writing to a pipe that is not read

    def _is_loss(self, error: OperationError) -> bool:
        """Returns whether an error of TensorFlow may come from a process that was lost."""
        return isinstance(error, LOSSES) or self._was_interrupted()

    def _show_error(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Shows the error that ends the program, unless another process is its reason.

        Leaving the others then ends this process with one line, which names that process. One line
        is enough, too, where all were interrupted after the same step.
        """
        if error is self.stopped_by:
            self._shown = error
            print(f"{self._label}: {error}", file=sys.stderr, flush=True)
            return
        said = ""
        is_loss = isinstance(error, OperationError) and self._membership and self._is_loss(error)
        is_plain = self._show is sys.__excepthook__  # the program has no hook of its own
        is_known = is_plain and is_loss and self._was_interrupted()
        if is_loss or isinstance(error, MembershipError):
            try:
                soon = self._showing_soon(error, is_known=is_known) if is_loss else None
                with soon or contextlib.nullcontext():
                    self.leave(kind, error, traceback)
            except ValueError as why:
                said = "" if why is error else str(why)
        if error is not self._shown and not (is_known and said):
            with output_lock:
                self._show(kind, error, traceback)
            self._shown = error
        if said:
            print(said, file=sys.stderr, flush=True)

    def _end(self) -> None:
        """Leaves the others at the end of the program."""
        # The interpreter notes the error that ended the program there.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        # It has called the hook before: this group's, or one of the program in its place.
        if error and (error is self._shown or sys.excepthook != self._show_error):
            note_shown(error)
        try:
            self.leave(type(error) if error else None, error, None)
        except ValueError as said:
            print(said, file=sys.stderr, flush=True)
        # The interpreter may need seconds to end TensorFlow. A launcher that asks this process to
        # end meanwhile, because it has left the others, would only change its exit status.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _own(error: OperationError) -> RuntimeError:
    """Returns an error of the program in place of TensorFlow's."""
    own = RuntimeError(reason(error))
    if was_shown(error):
        note_shown(own)
    return own
