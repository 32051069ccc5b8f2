"""One line for an error of TensorFlow in an operation between processes."""

from __future__ import annotations

import re

import tensorflow as tf

OperationError = tf.errors.OpError  # raised by an operation that no longer reaches a process

# The kinds of them that such an operation raises; a program's own mistakes are of other kinds.
LOSSES = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)

_HOROVOD_ENDED = "Horovod has been shut down"  # begins its RuntimeError

# Lines around the informative one, and the number before it in a list of several errors.
_FRAME = re.compile(
    r"\s(?!\s*\(0\))|$|Graph execution error|Detected at node|Stack trace|<stack traces|"
    r"\d+ root error|:?\{"
)
_NODE = re.compile(r"\{\{\w+ [^{}]*\}\} ")  # before the line of an operation outside tf.function
_NUMBER = re.compile(r"\s*\(0\) ")


def is_operation_error(error: Exception) -> bool:
    """Returns whether an operation between the processes raised an error."""
    is_horovods = isinstance(error, RuntimeError) and str(error).startswith(_HOROVOD_ENDED)
    return is_horovods or isinstance(error, OperationError)


def reason(error: Exception) -> str:
    """Returns the informative line of an error."""
    lines = [_NODE.sub("", line, 1) for line in str(error).splitlines()]
    lines = [line for line in lines if not _FRAME.match(line)]
    return _NUMBER.sub("", lines[0]) if lines else type(error).__name__
