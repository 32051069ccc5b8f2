"""A cluster with parameter servers whose processes a test kills and starts again."""

import contextlib
import signal
from collections.abc import Iterable, Sequence

from inception.cluster import members
from inception.testing.runs import commands_of
from terngrad.testing.addresses import free_ports
from terngrad.testing.processes import Started


class ProcessCluster(contextlib.AbstractContextManager):
    """The processes of a cluster by the labels of their lines: "0", "1", "ps 0".

    Processes that still run at the end are killed. If a wait fails, the test fails with the lines
    of all processes.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        program: str,
        flags: Sequence[str],
        absent: Iterable[str] = (),
    ) -> None:
        """Starts all processes but the absent ones."""
        self.members = {m.label: m for m in members.members(workers, servers, free_ports)}
        self.runs: dict[str, Started] = {}
        self._program, self._flags = program, list(flags)
        for label in self.members:
            if label not in absent:
                self.start(label)

    def start(self, label: str, *flags: str) -> Started:
        """Starts a process, perhaps again after a kill, with additional flags."""
        own = [*self.members[label].flags, *flags]
        (command,) = commands_of(self._program, self._flags, [own])
        self.runs[label] = Started(command)
        return self.runs[label]

    def kill(self, label: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal; after SIGKILL waits for the process to end."""
        self.runs[label].process.send_signal(how)
        if how == signal.SIGKILL:
            self.runs[label].process.wait()
            self.runs[label].reader.join(10)

    def wait_for(self, label: str, pattern: str) -> str:
        """Waits for a line of a process; returns the line."""
        with self._showing_all(label):
            return self.runs[label].wait_for(pattern)

    def status(self, label: str) -> int:
        """Waits until a process ends; returns its exit status."""
        with self._showing_all(label):
            return self.runs[label].finish()

    def finish(self, *labels: str) -> None:
        """Waits for some processes, or all, and checks that they succeeded."""
        for label in labels or self.runs:
            assert self.status(label) == 0, self.lines()
        assert "Traceback" not in self.lines()

    def lines(self) -> str:
        """Returns the lines of all processes, with their labels."""
        return "\n".join(f"[{label}] {line}" for label, r in self.runs.items() for line in r.lines)

    @contextlib.contextmanager
    def _showing_all(self, label: str):
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}\n{self.lines()}") from None

    def __exit__(self, *exception: object) -> None:
        for run in self.runs.values():
            run.end()
