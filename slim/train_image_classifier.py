r"""Trains a net on a data set on one machine, with the flags of TF-Slim.

python -m slim.train_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --train_dir=DIR --max_number_of_steps=20000
"""

import functools

from absl.flags import FlagValues

from inception import app, flag_table, programs, slim_flags


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    programs.run_training(slim_flags.train_config(values))


if __name__ == "__main__":
    app.run(main, functools.partial(flag_table.define, slim_flags.TrainFlags))
