"""Python programs that tests start by forking a process that has imported TensorFlow.

Importing TensorFlow takes some 4 s of a core, most of the time of many a process that tests start.
What differs from a process of its own: all share one hash seed, and /proc shows the command of the
fork server.
"""

import atexit
import io
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TextIO

_IMPORTED = ["tensorflow", "keras", "grpc"]


class ForkedProgram:
    """`python -u -m MODULE ARGUMENT...`, with the part of Popen's interface that tests use.

    Attributes:
      pid: process id.
      stdout: what the program prints, also to stderr.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], in_own_group: bool
    ) -> None:
        """Starts the program; `env` is its whole environment."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        reader, writer = context.Pipe(duplex=False)
        with reader, writer:
            own = (module, list(arguments), dict(env), in_own_group, writer)
            self._process = context.Process(target=_run, args=own)
            self._process.start()
            self.stdout: TextIO = os.fdopen(os.dup(reader.fileno()), errors="replace")
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the signal that ended the program; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Returns `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; returns `returncode`; raises TimeoutExpired after some seconds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)


def _run(
    module: str,
    arguments: list[str],
    env: dict[str, str],
    in_own_group: bool,
    output: Connection,
) -> None:
    if in_own_group:
        os.setsid()
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    output.close()
    # The server's own streams were made for other kinds of files.
    sys.stdout, sys.stderr = (_unbuffered(standard) for standard in (1, 2))
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _unbuffered(descriptor: int) -> TextIO:
    return io.TextIOWrapper(open(descriptor, "wb", 0, closefd=False), write_through=True)
