"""One line for an error of TensorFlow in writing files."""

from __future__ import annotations

import re

import tensorflow as tf

# TensorFlow's own names: of the function, the node and a temporary file before the reason, and of
# the operation behind it.
_AROUND = re.compile(r"^(\{\{[^}]*\}\} *)*(/[^;]*; )?| *\[Op:\w+\].*$| *\[\[\{\{.*$")


def first_line(error: tf.errors.OpError) -> str:
    """Returns the first line of an error's message, without names of TensorFlow's own."""
    return _AROUND.sub("", error.message.splitlines()[0]) if error.message else str(error.code)
