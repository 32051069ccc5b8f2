r"""Trains a net on a data set with the flags of TF-Slim, on one machine or under mpirun.

python -m slim.train_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --train_dir=DIR --max_number_of_steps=20000
mpirun -np 2 python -m slim.train_image_classifier --variable_update=mpi ...
"""

from absl.flags import FlagValues

from inception import app, flag_table, programs, slim_flags


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    config = slim_flags.train_config(values)
    cluster = slim_flags.cluster_config(values, config.save_interval_secs)
    if cluster:
        programs.run_worker(config, None, cluster)
    else:
        programs.run_training(config)


def define(values: FlagValues) -> None:
    """Defines the program's flags."""
    flag_table.define(slim_flags.TrainFlags, values)
    flag_table.define(slim_flags.ClusterFlags, values)


if __name__ == "__main__":
    app.run(main, define)
