r"""Trains a net on a data set with the flags of TF-Slim, on one machine or as one of several.

python -m slim.train_image_classifier --model_name=lenet --dataset_name=mnist --dataset_dir=DIR \
    --train_dir=DIR --max_number_of_steps=20000

On several machines each process adds two flags:

    --worker_hosts=HOST1:2222,HOST2:2222 --task_id=0

With --ps_hosts the workers exchange through parameter servers, which run with --job_name=ps;
--variable_update=mpi is for mpirun.
"""

from __future__ import annotations

import functools
import os

from absl.flags import FlagValues

from inception import app, programs
from inception.flags import tf_slim

_own_names = functools.partial(tf_slim.own_names, tf_slim.TrainFlags)


def main(values: FlagValues) -> None:
    """Trains as the flags say."""
    with _own_names():
        cluster = tf_slim.cluster_config(values, os.environ)
        if cluster:
            read = lambda values: (tf_slim.train_config(values), None)
            programs.take_part(cluster, values, read, _own_names)
        else:
            programs.run_training(tf_slim.train_config(values))


if __name__ == "__main__":
    app.run(main, tf_slim.define_train)
