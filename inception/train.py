r"""Trains a net on any data set on one machine, with float or ternary gradients.

python -m inception.train --dataset_name=NAME --data_dir=DIR --grad_bits=1 --clip_factor=2.5 \
    --num_nodes=4
"""

from inception import programs

if __name__ == "__main__":
    programs.train("", __doc__)
