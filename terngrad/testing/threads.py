"""Calls that a test makes at the same time."""

import threading
from collections.abc import Callable

from terngrad.testing.limits import HANG_SECS


def in_threads(*calls: Callable[[], object]) -> list[object]:
    """Runs each call in its own thread; returns the result or the exception of each."""
    results: list[object] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECS)
        assert not thread.is_alive(), f"a call has not returned within {HANG_SECS:g} s"
    return results
