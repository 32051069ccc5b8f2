r"""Evaluates the checkpoints of a training on any data set: the newest one, then each newer one.

python -m inception.evaluate --dataset_name=NAME --data_dir=DIR --checkpoint_dir=/tmp/NAME_train \
    --run_once
"""

from inception import programs

if __name__ == "__main__":
    programs.evaluate("", __doc__)
