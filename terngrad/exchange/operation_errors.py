"""Errors of operations between processes, each as one line that names a lost process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from terngrad.cluster.admission import Peer
from terngrad.cluster.errors import MembershipError, SharedError
from terngrad.cluster.membership import Membership, end_process, with_final_actions
from terngrad.cluster.progress import ProcessProgress
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import CONNECTION

OperationError = tf.errors.OpError  # any error of a TensorFlow operation

# The kinds that tell of a lost process; a program's own mistakes are of other kinds.
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


def _is_operation_error(error: Exception) -> bool:
    """Returns whether an operation between the processes raised an error."""
    is_horovods = isinstance(error, RuntimeError) and str(error).startswith(_HOROVOD_ENDED)
    return is_horovods or isinstance(error, OperationError)


def reason(error: Exception) -> str:
    """Returns the informative line of an error."""
    lines = [_NODE.sub("", line, 1) for line in str(error).splitlines()]
    lines = [line for line in lines if not _FRAME.match(line)]
    return _NUMBER.sub("", lines[0]) if lines else type(error).__name__


@contextlib.contextmanager
def watching(
    config: ConnectConfig,
    peers: Mapping[int, Peer],
    *,
    progress: ProcessProgress,
    at_loss: Sequence[Callable[[], str]],
    addresses: Mapping[int, str] = MappingProxyType({}),
    on_loss: Callable[[str], None] = end_process,
) -> Iterator[Membership]:
    """Watches the other processes until the end of the block; for the arguments see `Membership`.

    Before this process ends because of a loss or a failed operation, it calls each of `at_loss`,
    after it has informed the others; the texts that these return are part of the message.

    Raises:
      MembershipError: an operation between the processes failed.
      SharedError: bytes have changed on the way between two of them.
    """
    lose, failure = (lambda message: on_loss(with_final_actions(message, at_loss))), None
    try:
        with Membership(
            config, peers, on_loss=lose, progress=progress, addresses=addresses
        ) as membership:
            try:
                yield membership
            except Exception as error:
                if not _is_operation_error(error):
                    raise
                failure = _failure(membership, reason(error))
                raise failure from error
    except (MembershipError, SharedError) as error:
        if error is not failure:  # the block's own
            raise
        raise type(error)(with_final_actions(str(error), at_loss)) from error.__cause__


def _failure(membership: Membership, text: str) -> MembershipError | SharedError:
    """Returns the error of an operation that failed, unless the loss of another ends this one."""
    if text.startswith(CONNECTION):  # nobody is lost
        return SharedError(text)
    membership.await_loss()  # it ends this process with the name of a lost one
    return MembershipError(f"an operation between the workers failed: {text}")
