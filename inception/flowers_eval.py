"""Evaluates the checkpoints of a training on the flowers, or on your own images.

python -m inception.flowers_eval --data_dir=DIR --checkpoint_dir=/tmp/flowers_train --run_once
python -m inception.flowers_eval --dataset_name=images --data_dir=DIR --net=alexnet --run_once
"""

from inception import programs

if __name__ == "__main__":
    programs.evaluate("flowers", __doc__)
