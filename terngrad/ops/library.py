"""The compiled ops: where their library lies, and whether it fits this TensorFlow."""

from __future__ import annotations

import functools
import glob
import os
from types import ModuleType

FOLDER = os.path.dirname(os.path.abspath(__file__))
_PREFIX, _SUFFIX = "kernels-tf", ".so"


class UnavailableError(RuntimeError):
    """There is no library for this TensorFlow; the message says why, and what to do."""


def path_for(version: str, folder: str = FOLDER) -> str:
    """Path of the library for a version of TensorFlow: ops are bound to the one they met."""
    return os.path.join(folder, f"{_PREFIX}{version}{_SUFFIX}")


@functools.cache
def load(folder: str = FOLDER) -> ModuleType:
    """Returns the Python functions of the native ops.

    Raises:
      UnavailableError: the library was not built, was built for another TensorFlow, or is damaged.
    """
    import tensorflow as tf

    path = path_for(tf.version.VERSION, folder)
    if not os.path.exists(path):
        raise UnavailableError(_why_missing(tf.version.VERSION, folder))
    try:
        return tf.load_op_library(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        first = str(getattr(error, "message", error)).splitlines()[0]
        raise UnavailableError(f"{path} cannot be loaded: {first}") from None


def _why_missing(version: str, folder: str) -> str:
    others = glob.glob(glob.escape(os.path.join(folder, _PREFIX)) + "*" + _SUFFIX)
    names = [os.path.basename(p)[len(_PREFIX) : -len(_SUFFIX)] for p in others]
    state = f"are built for TensorFlow {', '.join(sorted(names))}" if names else "are not built"
    return (
        f"native kernels {state}, this is TensorFlow {version}; "
        "`python -m terngrad.ops.build` builds them"
    )
