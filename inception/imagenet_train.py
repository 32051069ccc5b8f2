"""Trains a net on ImageNet on one machine, with float or ternary gradients.

python -m inception.imagenet_train --data_dir=DIR --grad_bits=1 --clip_factor=2.5 --num_nodes=2
"""

from inception import programs

if __name__ == "__main__":
    programs.train("imagenet", __doc__)
