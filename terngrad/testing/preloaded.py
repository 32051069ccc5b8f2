"""The imports of the process from which tests fork programs."""

import sys

# Keras would load matplotlib for pictures that no program draws; programs that draw load it later.
sys.modules["matplotlib"] = None
try:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
finally:
    del sys.modules["matplotlib"]
