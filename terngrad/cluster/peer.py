"""Messages that processes of a training exchange beside their gradients: JSON over a channel.

Without TLS the network must be trusted, as for TensorFlow's own collectives. Other programs may
still connect by mistake, and must do no harm.
"""

from __future__ import annotations

import contextlib
import json
import queue

from terngrad.cluster.channel import ForeignError
from terngrad.cluster.pulse import Begun
from terngrad.connect.channel import Channel, FrameError
from terngrad.connect.tls import ChangedError

LONGEST_MESSAGE = 1 << 20  # bytes


class Peer:
    """A connection to another process.

    Attributes:
      rank: index of the other process.
      heard_at: time of its last message, on the clock of the watching `Membership`.
      batches: its last reported progress; see `Pulse`.
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
        self.begun = Begun()
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self._channel = channel

    @property
    def fault(self) -> str:
        """What is wrong with the other side, as TLS says; "" = nothing that is known."""
        return self._channel.fault

    @property
    def changed(self) -> ChangedError | None:
        """That bytes have changed on the way, which is nobody's fault; None = they have not."""
        return self._channel.changed

    @property
    def has_left(self) -> bool:
        """Whether the other side has closed the connection, and all of its messages were read."""
        return self._channel.has_left

    def wait_at_most(self, secs: float) -> None:
        """Treats a silence of this length as the end of the connection."""
        self._channel.wait_at_most(secs)

    def send(self, message: dict) -> None:
        """Sends a message; a broken connection shows only in `receive`."""
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(message).encode())

    def receive(self) -> dict | None:
        """Waits for the next message; returns None if the connection ended.

        Raises:
          ForeignError: the data received is not a message.
        """
        try:
            text = next(iter(self._channel), None)
            message = None if text is None else json.loads(bytes(text))
        except FrameError as error:
            raise ForeignError(str(error)) from None
        except (ValueError, RecursionError):
            raise ForeignError("a message that is not JSON") from None
        if message is not None and not isinstance(message, dict):
            raise ForeignError("a message that is not a JSON object")
        return message

    def shut(self) -> None:
        """Ends sending; messages already sent still arrive."""
        self._channel.end()

    def close(self) -> None:
        """Ends the connection; messages already sent still arrive."""
        self._channel.cut()
