"""A loop of a user's own whose processes may come and go.

python -m terngrad.testing.programs.elastic_loop STEPS [ARGUMENT=NUMBER...]

The arguments are of `join`; digests=1 prints a digest of the weights after each step, slots=N adds
variables of an optimizer to what the processes have in common, codes_sums=1 lets the owners of
shares code the means again, and values=N sets the number of weights.
"""

import sys

from terngrad.testing.elastic_steps import train

if __name__ == "__main__":
    train(int(sys.argv[1]), *sys.argv[2:])
