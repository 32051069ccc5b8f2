"""Evaluates the checkpoints of a training on MNIST: the newest one, then each newer one.

python -m inception.mnist_eval --data_dir=DIR --checkpoint_dir=/tmp/mnist_train --run_once
"""

from inception import programs

if __name__ == "__main__":
    programs.evaluate("mnist", __doc__)
