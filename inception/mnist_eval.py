"""Evaluates the checkpoints of a training on MNIST: the newest one, then each newer one.

python -m inception.mnist_eval --data_dir=DIR --checkpoint_dir=/tmp/mnist_train --run_once
"""

import functools

from absl.flags import FlagValues

from inception import app, flags


def main(values: FlagValues) -> None:
    """Evaluates as the flags say."""
    config = flags.eval_config(values, "mnist")
    with app.quiet_import():
        from inception import evaluate
    evaluate.evaluate(config)


if __name__ == "__main__":
    app.run(main, functools.partial(flags.define_eval, dataset_name="mnist"))
