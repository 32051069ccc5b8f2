"""What a worker needs of a network: streams to each ps, and calls that are repeated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class LinkEvents:
    """What a link tells its user.

    Attributes:
      lock: the user's; held while a stream takes the place of one that broke, so that nothing is
        sent before what `on_open` says.
      on_message: takes what arrives; this and the others are called from one thread.
      on_break: called when a stream broke.
      on_open: called when another stream is open.
      on_loss: called, instead of that, with the reason for which there is none.
      on_refusal: called, instead of that, where the ps said the reason.
    """

    lock: AbstractContextManager
    on_message: Callable[[bytes], None]
    on_break: Callable[[], None]
    on_open: Callable[[], None]
    on_loss: Callable[[str], None]
    on_refusal: Callable[[str], None]


class Link(Protocol):
    """A worker's stream to a ps: one at a time, opened again when it breaks.

    What is sent while there is none is lost: when it is open again, the user of a link says anew
    what the ps has to know.
    """

    @property
    def is_up(self) -> bool:
        """Whether a stream is open."""

    @property
    def unsent(self) -> int:
        """Messages that wait to be sent."""

    def start(self) -> None:
        """Begins to read."""

    def send(self, message: bytes) -> None:
        """Sends, if a stream is open; never waits."""

    def wait_until_up(self, secs: float) -> bool:
        """Waits so long for a stream; returns whether one is open."""

    def end(self, last_message: bytes | None = None) -> None:
        """Ends this half of the stream after what was sent and this; opens no other stream."""

    def join(self, timeout_secs: float) -> None:
        """Waits until the ps has ended its half, too."""


class Network(Protocol):
    """How a worker reaches all ps."""

    def open(self, ps: int, method: str, events: LinkEvents) -> Link:
        """Opens a stream to a ps, which may start later.

        Raises:
          MembershipError: names the ps that cannot be reached or that refuses this worker.
        """

    def repeat(self, secs: float, call: Callable[[], None]) -> Callable[[], None]:
        """Makes a call again and again, every so many seconds; returns what ends that."""

    def close(self) -> None:
        """Cuts what is still open."""
