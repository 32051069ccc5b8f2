r"""Trains a program many times with different flags, and finds the best ones.

python -m inception.sweep --program=inception.mnist_train --jobs=2 \
    --grid "initial_learning_rate=0.1,0.01 clip_factor=0,2.5" \
    -- --data_dir=DIR --grad_bits=1 --max_steps=500

The flags after -- are those of all trainings. A sweep that was ended, also by a crash, goes on when
the same command is given again; two sweeps with one study share its trials.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.sweeping.settings import SweepFlags, split


def main(values: FlagValues, given: Sequence[str]) -> None:
    """Runs the sweep.

    Args:
      values: the flags of the sweep.
      given: the flags of all trainings.
    """
    settings = table.read(SweepFlags, values)
    try:
        import optuna
    except ModuleNotFoundError:
        raise ValueError(
            "sweeps need Optuna: bash scripts/setup.sh sweep, or pip install '.[sweep]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from inception.sweeping import sweeper

    sweeper.sweep(settings, given)


if __name__ == "__main__":
    own, trainings = split(sys.argv)
    app.run(
        functools.partial(main, given=trainings),
        functools.partial(table.define, SweepFlags),
        own,
        description=__doc__,
    )
