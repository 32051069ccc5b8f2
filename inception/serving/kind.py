"""What the two kinds of ps have in common: one adds gradients, the other holds parameters."""

import abc
import signal
from collections.abc import Callable, Sequence

from inception.results.ps_report import Told


class Ps(abc.ABC):
    """A ps as its process sees it.

    Attributes:
      task: what it does for its workers, in the words of its first line.
      use_of_kernels: what it does with codes.
    """

    task: str
    use_of_kernels: str

    @abc.abstractmethod
    def start(self, address: str) -> int:
        """Listens at "host:port"; see `Listener.start`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends `wait`, from any thread."""

    @abc.abstractmethod
    def wait(self, beat: Callable[[], None]) -> None:
        """Returns when no worker needs this ps any more; calls `beat` now and then."""

    @abc.abstractmethod
    def told(self) -> Told | None:
        """What it has done since the last call; None if that is nothing."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all streams."""

    @abc.abstractmethod
    def tell_end(self, signals: Sequence[signal.Signals]) -> None:
        """Prints the last line, after `close`, given the signals that came.

        Raises:
          ValueError: names the worker that was lost.
          SystemExit: with the signal's status, if it came while workers were here.
        """
