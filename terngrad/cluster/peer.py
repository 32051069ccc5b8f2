"""Messages that processes of a training exchange beside their gradients: JSON over a channel.

Without TLS the network must be trusted, as for MPI. Other programs may
still connect by mistake, and must do no harm.
"""

from __future__ import annotations

import contextlib
import json
import queue

from terngrad.cluster.channel import ForeignError
from terngrad.cluster.heartbeat import BegunOperations
from terngrad.connect.channel import Channel, FrameError

LONGEST_MESSAGE = 1 << 20  # bytes


class Peer:
    """A connection to another process.

    Attributes:
      rank: index of the other process.
      channel: carries the messages.
      heard_at: time of its last message, on the clock of the watching `Membership`.
      batches: its last reported progress; see `Heartbeat`.
      left: whether it announced that it ends.
      is_leaving: whether it has begun its last operation, and may still wait for others to leave.
      begun: the operations with the others that it has begun, as it last reported.
      answers: its messages other than signs of life; None after the last one.
    """

    def __init__(self, channel: Channel, rank: int) -> None:
        """Takes ownership of a channel."""
        self.rank = rank
        self.heard_at = 0.0
        self.batches: int | None = None
        self.left = False
        self.is_leaving = False
        self.begun = BegunOperations()
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self.channel = channel

    def send(self, message: dict) -> None:
        """Sends a message; a broken connection shows only in `receive`."""
        with contextlib.suppress(OSError):
            self.channel.send(json.dumps(message).encode())

    def receive(self) -> dict | None:
        """Waits for the next message; returns None if the connection ended.

        Raises:
          ForeignError: the data received is not a message.
        """
        try:
            text = next(iter(self.channel), None)
            message = None if text is None else json.loads(bytes(text))
        except FrameError as error:
            raise ForeignError(str(error)) from None
        except (ValueError, RecursionError):
            raise ForeignError("a message that is not JSON") from None
        if message is not None and not isinstance(message, dict):
            raise ForeignError("a message that is not a JSON object")
        return message

    def close(self) -> None:
        """Ends the connection; messages already sent still arrive."""
        self.channel.cut()
