"""Trains a net on CIFAR-10 on one machine, with float or ternary gradients.

python -m inception.cifar10_train --data_dir=DIR --grad_bits=1 --clip_factor=2.5 --num_nodes=4
"""

from inception import programs

if __name__ == "__main__":
    programs.train("cifar10", __doc__)
