"""Where trials run: shares of this machine, and of hosts that are reached over ssh."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Protocol

from inception.sweeping import messages
from inception.sweeping.messages import End, Evaluation, Order, Outcome
from terngrad.launcher import hosts

_TRIAL = "inception.sweeping.trial"
_CHECK_SECS = 60


class Channel(Protocol):
    """The two pipes of a running trial."""

    def events(self) -> Iterator[Evaluation | End]:
        """Yields what the trial tells; the last is always its end."""

    def stop(self) -> None:
        """Lets the training save and end."""


class Place(Protocol):
    """A place for one trial at a time.

    Attributes:
      label: its name for messages.
      slot: which share of its machine it is.
      slots: number of shares of its machine.
    """

    label: str
    slot: int
    slots: int

    def start(self, order: Order) -> contextlib.AbstractContextManager[Channel]:
        """Starts a trial, which ends with the block."""


class ProcessPlace:
    """A share of a machine on which a command runs the module `trial`."""

    def __init__(self, label: str, command: Sequence[str], slot: int, slots: int) -> None:
        """See `Place`; `command` runs the module there."""
        self.label, self.slot, self.slots = label, slot, slots
        self._command = command

    @contextlib.contextmanager
    def start(self, order: Order) -> Iterator[Channel]:
        """Starts a trial, which ends with the block."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches the sweep alone
            )
            with process:
                channel = _ProcessChannel(process, errors, self.label)
                channel.send(messages.write(order))
                try:
                    yield channel
                finally:
                    channel.stop()

    def check(self) -> None:
        """Raises ValueError if trials cannot run here."""
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_CHECK_SECS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"{self.label} does not answer within {_CHECK_SECS} s") from None
        if done.returncode:
            raise ValueError(
                f"{self.label} cannot run trials: {_last(done.stderr, done.returncode)}"
            )


class _ProcessChannel:
    def __init__(self, process: subprocess.Popen, errors: IO[str], label: str):
        self._process, self._errors, self._label = process, errors, label

    def send(self, text: str) -> None:
        with contextlib.suppress(OSError):  # it has ended: `events` tells why
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def events(self) -> Iterator[Evaluation | End]:
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # start-up files of the host's shell may print
                event = messages.read_event(line)
                yield event
                if isinstance(event, End):
                    return
        code = self._process.wait()
        self._errors.seek(0)
        yield End(Outcome.LOST, f"{self._label}: {_last(self._errors.read(), code)}")

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def _last(text: str, code: int) -> str:
    return hosts.last_line(text, f"the trial's process ended with status {code}")


def on_this_machine(jobs: int) -> list[ProcessPlace]:
    """Returns the places of this machine."""
    command = [sys.executable, "-m", _TRIAL]
    return [ProcessPlace(f"job {i}", command, i, jobs) for i in range(jobs)]


def on_hosts(
    names: Sequence[str], jobs: int, workspace: str, ssh_config: str
) -> list[ProcessPlace]:
    """Returns the places of some hosts.

    Args:
      names: of the hosts for ssh, which must not ask for a password.
      jobs: number of trials at once on each.
      workspace: folder of the repository there.
      ssh_config: ssh's configuration file; "" = the user's own.
    """
    ssh = ["ssh", "-F", ssh_config] if ssh_config else ["ssh"]
    line = hosts.module_line(workspace or hosts.WORKSPACE, _TRIAL)
    return [
        ProcessPlace(host, hosts.over_ssh(host, line, ssh), i, jobs)
        for i in range(jobs)
        for host in names
    ]
