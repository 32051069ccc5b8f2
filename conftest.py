"""What all tests need before TensorFlow computes anything."""

import os
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_configure() -> None:
    """Makes two logical CPU devices and the settings under which the numerics' laws hold."""
    # A shell ignores SIGINT for what it starts in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from inception import app

    with app.quiet_import():
        from inception import runtime
    runtime.configure(intra_threads=0, inter_threads=0, deterministic=True, log_placement=False)
    runtime.towers(2, on_cpu=True)
