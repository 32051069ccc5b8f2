"""One process of a training of LeNet on MNIST that names each step, with pauses.

Each worker waits before each batch for a time of its own, of SOAK_PAUSE_MS on average. So
other processes get CPU time, and at nearly any time some workers have pushed and others have not.
"""

import dataclasses
import functools
import os
import random
import time
from collections.abc import Callable

from inception import app, programs
from inception.flags.configs import TrainConfig

PAUSE_MS = "SOAK_PAUSE_MS"


def _paced(
    run: Callable[..., None], pause_secs: float, config: TrainConfig, *others: object
) -> None:
    with app.quiet_import():
        from inception.training import batches, preparation

    original = preparation.training_batches
    pause = lambda: time.sleep(random.uniform(0, 2 * pause_secs))
    preparation.training_batches = lambda *given: batches.paced(original(*given), pause)
    run(dataclasses.replace(config, log_every_n_steps=1), *others)


if __name__ == "__main__":
    pause_secs = float(os.environ.get(PAUSE_MS, "0")) / 1000
    programs.run_worker = functools.partial(_paced, programs.run_worker, pause_secs)
    programs.train_distributed("mnist", __doc__)
