"""The log of a ps, and the signals that stop it."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


def say(text: str) -> None:
    """Logs a line; a full disk or a closed pipe does not end the training."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


@contextlib.contextmanager
def stopped_by_signals(end: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Calls `end` at SIGTERM or Ctrl-C, unless ignored; yields the received signals."""
    came: list[signal.Signals] = []

    def stop(number: int, frame) -> None:
        del frame
        came.append(signal.Signals(number))
        threading.Thread(target=end).start()  # this thread may hold the lock that `end` needs

    wanted = (signal.SIGTERM, signal.SIGINT)
    heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
