"""The interface of the two kinds of ps: one adds gradients, the other holds parameters."""

import abc
import signal
from collections.abc import Callable, Sequence

from inception.results.ps_report import Told


class Ps(abc.ABC):
    """A ps as its process sees it.

    Attributes:
      task: what it does for its workers, for its first line.
      use_of_kernels: what it does with codes, for its log.
    """

    task: str
    use_of_kernels: str

    @abc.abstractmethod
    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends `wait`; any thread may call it."""

    @abc.abstractmethod
    def wait(self, beat: Callable[[], None]) -> None:
        """Waits until no worker needs this ps any more; calls `beat` regularly."""

    @abc.abstractmethod
    def told(self) -> Told | None:
        """Returns a report of the time since the last call; None if nothing happened."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all streams."""

    @abc.abstractmethod
    def tell_end(self, signals: Sequence[signal.Signals]) -> None:
        """Prints the last line, after `close`, given the received signals.

        Raises:
          ValueError: a worker was lost.
          SystemExit: with the signal's status, if it arrived while workers were connected.
        """
