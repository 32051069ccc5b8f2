"""Trains a net on CIFAR-10 on one machine, with float or ternary gradients.

python -m inception.cifar10_train --data_dir=DIR --grad_bits=1 --clip_factor=2.5 --num_nodes=4
"""

import functools

from absl.flags import FlagValues

from inception import app, flags


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    config = flags.train_config(values, "cifar10")
    with app.quiet_import():
        from inception import train  # after the flags: TensorFlow takes seconds to load

    train.train(config)


if __name__ == "__main__":
    app.run(main, functools.partial(flags.define_train, dataset_name="cifar10"))
