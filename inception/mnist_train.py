"""Trains a net on MNIST on one machine, with float or ternary gradients.

python -m inception.mnist_train --data_dir=DIR --grad_bits=1 --clip_factor=2.5 --num_nodes=4
"""

from inception import programs

if __name__ == "__main__":
    programs.train("mnist", __doc__)
