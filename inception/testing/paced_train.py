"""mnist_distributed_train with steps that take at least 20 ms.

A test that restarts a worker waits until the new process has loaded TensorFlow. The pauses of the
other workers leave it processor time. Once the file exists that FULL_SPEED names, steps take no
longer than they need.
"""

import functools
import os
import time
from collections.abc import Callable

from inception import app, programs

_STEP_SECS = 0.02


def paced(run: Callable[..., None], *arguments: object) -> None:
    """Runs a worker with a pause before each batch."""
    with app.quiet_import():
        from inception.training import batches, preparation

    original = preparation.training_batches
    preparation.training_batches = lambda *given: batches.paced(original(*given), _pause)
    run(*arguments)


def _pause() -> None:
    if not os.path.exists(os.environ.get("FULL_SPEED", "")):
        time.sleep(_STEP_SECS)


if __name__ == "__main__":
    programs.run_worker = functools.partial(paced, programs.run_worker)
    programs.run_asynchronous_worker = functools.partial(paced, programs.run_asynchronous_worker)
    programs.train_distributed("mnist", __doc__)
