"""Evaluates the checkpoints of a training on CIFAR-10: the newest one, then each newer one.

python -m inception.cifar10_eval --data_dir=DIR --checkpoint_dir=/tmp/cifar10_train --run_once
"""

from inception import programs

if __name__ == "__main__":
    programs.evaluate("cifar10", __doc__)
