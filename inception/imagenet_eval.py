"""Evaluates the checkpoints of a training on ImageNet: the newest one, then each newer one.

python -m inception.imagenet_eval --data_dir=DIR --checkpoint_dir=/tmp/imagenet_train --run_once
"""

from inception import programs

if __name__ == "__main__":
    programs.evaluate("imagenet", __doc__)
