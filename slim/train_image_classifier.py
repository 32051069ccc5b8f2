r"""Trains a net on a data set with the flags of TF-Slim, on one machine or under mpirun.

python -m slim.train_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --train_dir=DIR --max_number_of_steps=20000
mpirun -np 2 python -m slim.train_image_classifier --variable_update=mpi ...
"""

from __future__ import annotations

from absl.flags import FlagValues

from inception import app, programs
from inception.flags import slim, table


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    with slim.own_names(image_size="train_image_size"):
        config = slim.train_config(values)
        cluster = slim.cluster_config(values, config.save_interval_secs)
        if cluster:
            programs.run_worker(config, None, cluster)
        else:
            programs.run_training(config)


def define(values: FlagValues) -> None:
    """Defines the program's flags."""
    table.define(slim.TrainFlags, values)
    table.define(slim.ClusterFlags, values)


if __name__ == "__main__":
    app.run(main, define)
