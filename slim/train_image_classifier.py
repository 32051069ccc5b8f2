r"""Trains a net on a data set on one machine, with the flags of TF-Slim.

python -m slim.train_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --train_dir=DIR --max_number_of_steps=20000
"""

import functools

from absl.flags import FlagValues

from inception import app, flag_table, slim_flags


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    config = flag_table.read(slim_flags.TrainFlags, values).config()
    with app.quiet_import():
        from inception import train
    train.train(config)


if __name__ == "__main__":
    app.run(main, functools.partial(flag_table.define, slim_flags.TrainFlags))
