"""The processes of an elastic group that make steps together, from one view to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from terngrad.cluster.membership import LOST_STATUS
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.operation_errors import OperationError
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection, StateSizeError
from terngrad.exchange.parameter_server.membership import LeftAloneError
from terngrad.library.group import Group


class Views:
    """The view of a process, and how it joins the next one.

    If processes join or are lost, an operation raises an error for which `is_interruption` is true.
    The process then calls `synchronize` and repeats the operation.
    """

    def __init__(self, group: Group) -> None:
        """Serves a group with `is_elastic`."""
        self._group = group

    @property
    def _connection(self) -> ParameterServerConnection:
        self._group.check_open()
        return self._group.connection

    @property
    def have_begun(self) -> bool:
        """Whether this process has been in a view."""
        return bool(self._connection.version)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the processes in the view, in ascending order."""
        return self._connection.members

    def gather(self, name: str, content: bytes, round_: int) -> Mapping[int, bytes]:
        """Returns the values of the processes in the view, by rank.

        All get the same ones. They may have the value of a process that was lost meanwhile, and
        lack that of one that has joined since they were sent first.

        Args:
          name: of the value, the same on all.
          content: at most 64 KB.
          round_: number of the call with this name; it grows, and is the same on all.
        """
        return self._connection.values_of_view(name, content, round_)

    def is_interruption(self, error: Exception) -> bool:
        """Returns whether an operation failed because processes come or go."""
        is_one = isinstance(error, (OperationError, InterruptionError))
        return is_one and self._connection.was_interrupted()

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """Takes part in the next view; see `Group.synchronize`.

        Raises:
          LeftAloneError: the others train other variables, so this process has left them.
        """
        try:
            return self._group.synchronize(state)
        except StateSizeError:
            self.leave("the others are in a later call of fit, which no worker can join")

    def leave(self, why: str) -> None:
        """Leaves the others, which go on.

        Raises:
          LeftAloneError: ends this process.
        """
        print(f"{self._group.label} ends: {why}", flush=True)
        error = LeftAloneError(LOST_STATUS)
        self._group.__exit__(LeftAloneError, error, None)
        raise error
