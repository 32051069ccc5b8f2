"""A network of hosts on this machine, each a network namespace; see network.sh."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from inception.flags.table import Kind
from terngrad.launcher.hosts import PORT

SCRIPT = str(Path(__file__).with_name("network.sh"))
UNSHAPED = "unshaped"

BANDWIDTH = Kind(
    str,
    f"{UNSHAPED}, or a rate such as 100mbit or 2.5gbit",
    lambda text: re.fullmatch(rf"{UNSHAPED}|[1-9]\d*(\.\d+)?[kmg]bit", text) is not None,
)


@dataclasses.dataclass(frozen=True)
class NamespaceNetwork:
    """A network of hosts on this machine.

    Attributes:
      name: name of the network on this machine.
      size: number of hosts.
    """

    name: str
    size: int

    def __enter__(self) -> NamespaceNetwork:
        """Creates the hosts, which exist until the end of the block.

        Raises:
          ValueError: this machine cannot have them; the message says why.
        """
        try:
            self._configure("up", str(self.size))
        except BaseException:  # also Ctrl-C: some hosts may be there, and `__exit__` is not called
            with contextlib.suppress(Exception):
                self._configure("down")
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._configure("down")

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each host."""
        return [f"10.77.0.{i + 1}:{PORT}" for i in range(self.size)]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the commands of `on_host`."""
        return {"NETWORK": self.name}

    def shape(self, rate: str) -> None:
        """Limits the bandwidth of each host, in both directions, to a rate of BANDWIDTH."""
        self._configure("rate", str(self.size), rate)

    def set_connected(self, index: int, connected: bool) -> None:
        """Connects a host to the network, or disconnects it."""
        self._configure("cable", str(index), "up" if connected else "down")

    def on_host(self, index: int, command: Sequence[str]) -> list[str]:
        """Returns the command that runs a command on a host; see `environment`."""
        return ["bash", SCRIPT, "run", str(index), *command]

    def _configure(self, *arguments: str) -> None:
        done = subprocess.run(
            ["bash", SCRIPT, *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ValueError(done.stderr.strip() or f"network.sh {arguments[0]} failed")
