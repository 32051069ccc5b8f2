"""The network as a worker sees it: streams to each ps, and repeated calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class LinkEvents:
    """Calls from a link to its user, all from one thread.

    Attributes:
      lock: the user's lock; held while a stream replaces a broken one, so that the messages of
        `on_open` are sent first.
      on_message: called with each message.
      on_break: called when a stream breaks.
      on_open: called when another stream is open.
      on_loss: called with the reason if no stream can be opened in time; the link goes on trying
        if it returns True.
      on_refusal: called with the reason if the ps refuses this worker; the link goes on trying if
        it returns True.
    """

    lock: AbstractContextManager
    on_message: Callable[[bytes], None]
    on_break: Callable[[], None]
    on_open: Callable[[], None]
    on_loss: Callable[[str], bool | None]
    on_refusal: Callable[[str], bool | None]


class Link(Protocol):
    """A worker's stream to a ps, which is opened again when it breaks.

    Messages sent while no stream is open are lost: the user repeats the necessary ones in
    `on_open`.
    """

    @property
    def is_up(self) -> bool:
        """Whether a stream is open."""

    @property
    def unsent(self) -> int:
        """Number of messages that wait to be sent."""

    def start(self) -> None:
        """Starts to read."""

    def send(self, message: bytes) -> None:
        """Sends a message if a stream is open; never waits."""

    def wait_until_up(self, secs: float) -> bool:
        """Waits at most `secs` seconds for a stream; returns whether one is open."""

    def end(self, last_message: bytes | None = None) -> None:
        """Sends a last message and ends this half of the stream; opens no other stream."""

    def join(self, timeout_secs: float) -> None:
        """Waits until the ps has also ended its half."""


class Network(Protocol):
    """How a worker reaches all ps."""

    def open(self, ps: int, method: str, events: LinkEvents, *, waits: bool = True) -> Link:
        """Opens a stream to a ps, which may start later.

        Args:
          ps: index of the ps.
          method: name of a method of the service.
          events: calls to the user of the link.
          waits: whether to wait for the stream. Otherwise the started link opens it, and calls
            `on_open`.

        Raises:
          MembershipError: the ps cannot be reached or refuses this worker.
        """

    def repeat(self, secs: float, call: Callable[[], None]) -> Callable[[], None]:
        """Makes a call every `secs` seconds; returns a function that ends this."""

    def close(self) -> None:
        """Cuts all open streams."""
