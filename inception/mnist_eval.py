"""Evaluates the checkpoints of a training on MNIST: the newest one, then each newer one.

python -m inception.mnist_eval --data_dir=DIR --checkpoint_dir=/tmp/mnist_train --run_once
"""

if __name__ == "__main__":  # before the imports, which take a while
    from terngrad import starting

    starting.end_at_signals()

from inception import programs

if __name__ == "__main__":
    programs.evaluate("mnist", __doc__)
