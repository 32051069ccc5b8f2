"""A program that a test gives as a text.

python -m terngrad.testing.programs.snippet TEXT [ARGUMENT...]

It differs from `python -c TEXT` in that `Started` forks it from a process with TensorFlow.
"""

import sys

if __name__ == "__main__":
    del sys.argv[0]
    exec(sys.argv[0], {"__name__": "__main__"})
