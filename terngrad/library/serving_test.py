"""The signals that end a ps."""

import os
import signal
import threading

from terngrad.library.serving import stopped_by_signals
from terngrad.testing.limits import HANG_SECS


def test_a_signal_ends_a_ps_unless_it_is_ignored():
    ended = threading.Event()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopped_by_signals(ended.set) as came:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert ended.wait(HANG_SECS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGTERM]
