"""What TensorFlow says of an operation between processes that failed, in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf

from terngrad.cluster.channel import name_of

OperationError = tf.errors.OpError  # of an operation that cannot reach a process any more

# Lines that frame the one that says something, and what stands before that in a list of several.
_FRAME = re.compile(
    r"\s(?!\s*\(0\))|$|Graph execution error|Detected at node|Stack trace|<stack traces|"
    r"\d+ root error|Additional GRPC error|:?\{"
)
_NUMBER = re.compile(r"\s*\(0\) ")
_TASK = re.compile(r"/job:\w+/(?:replica:\d+/)?task:(\d+)(?:/device:\w+:\d+)?")


def reason(error: OperationError, hosts: Sequence[str]) -> str:
    """The line that says something, with the processes called by their names."""
    lines = [line for line in str(error).splitlines() if not _FRAME.match(line)]
    line = _NUMBER.sub("", lines[0]) if lines else type(error).__name__
    return _TASK.sub(lambda match: name_of(int(match[1]), hosts), line)
