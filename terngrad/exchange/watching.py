"""Watches the other processes of a training without parameter servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from terngrad.cluster.admission import Peer
from terngrad.cluster.channel import MembershipError, SharedError
from terngrad.cluster.heartbeat import Heartbeat
from terngrad.cluster.membership import Membership, end_process, with_last_acts
from terngrad.connect.config import ConnectConfig
from terngrad.connect.tls import CONNECTION
from terngrad.exchange.operation_errors import is_operation_error, reason


@contextlib.contextmanager
def watching(
    config: ConnectConfig,
    peers: Mapping[int, Peer],
    *,
    heartbeat: Heartbeat,
    addresses: Mapping[int, str] = MappingProxyType({}),
    on_loss: Callable[[str], None] = end_process,
    at_loss: Sequence[Callable[[], str]] = (),
) -> Iterator[Membership]:
    """Watches the other processes until the end of the block; for the arguments see `Membership`.

    Before this process ends because of a loss or a failed operation, it calls each of `at_loss`,
    after the others are told; what these return, such as what they saved, is part of the message.

    Raises:
      MembershipError: an operation between the processes failed.
      SharedError: bytes have changed on the way between two of them.
    """
    lose, failure = (lambda message: on_loss(with_last_acts(message, at_loss))), None
    try:
        with Membership(
            config, peers, on_loss=lose, heartbeat=heartbeat, addresses=addresses
        ) as membership:
            try:
                yield membership
            except Exception as error:
                if not is_operation_error(error):
                    raise
                failure = _failure(membership, reason(error))
                raise failure from error
    except (MembershipError, SharedError) as error:
        if error is not failure:  # the block's own
            raise
        raise type(error)(with_last_acts(str(error), at_loss)) from error.__cause__


def _failure(membership: Membership, text: str) -> MembershipError | SharedError:
    """Returns the error of an operation that failed, unless the loss of another ends this one."""
    if text.startswith(CONNECTION):  # nobody is lost
        return SharedError(text)
    membership.await_loss()  # whoever is lost has a name, which TensorFlow does not tell
    return MembershipError(f"an operation between the workers failed: {text}")
