"""Evaluates the checkpoints of a training on CIFAR-10: the newest one, then each newer one.

python -m inception.cifar10_eval --data_dir=DIR --checkpoint_dir=/tmp/cifar10_train --run_once
"""

import functools

from absl.flags import FlagValues

from inception import app, flags


def main(values: FlagValues) -> None:
    """Evaluates as the flags say."""
    config = flags.eval_config(values, "cifar10")
    with app.quiet_import():
        from inception import evaluate
    evaluate.evaluate(config)


if __name__ == "__main__":
    app.run(main, functools.partial(flags.define_eval, dataset_name="cifar10"))
