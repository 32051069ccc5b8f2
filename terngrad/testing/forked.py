"""Python programs that tests start by forking a process that has imported TensorFlow.

Importing TensorFlow takes some 4 s of a core, most of the time of many processes that tests start.
Forked programs differ from others in two ways: all share one hash seed, and /proc shows the command
in one word. Servers that they start beside themselves (own_server.py) are forked, too.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from typing import TextIO

import setproctitle

from terngrad.library import own_server
from terngrad.testing.limits import HANG_SECS

# TensorFlow, then what most programs import; none of these is run as a program itself.
_PRELOADED = [
    "terngrad.testing.preloaded",
    "terngrad.library.joining",
    "terngrad.library.reducer",
    "inception.training.train",
    "inception.programs",
]


class ForkedProgram:
    """`python -u -m MODULE ARGUMENT...`, with the part of Popen's interface that tests use.

    Attributes:
      pid: process id.
      stdout: what the program prints.
      stderr: what it prints to stderr; None if that is part of stdout, or of this process' stderr.
      stdin: what it reads; None if that is nothing.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        in_own_group: bool = False,
        own_stderr: bool = False,
        is_server: bool = False,
        siblings: Iterable[ForkedProgram] | None = None,
    ) -> None:
        """Starts the program.

        Args:
          module: what Python runs.
          arguments: of the program.
          env: its whole environment.
          in_own_group: whether it leads a new session and process group.
          own_stderr: whether stderr is read separately.
          is_server: whether it reads stdin, and shares the stderr of this process.
          siblings: None = multiprocessing's fork server starts the program. Otherwise this process
            forks itself, and the child closes its copies of the outputs of these programs. This
            process must have imported TensorFlow and computed nothing.
        """
        if siblings is None:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(_PRELOADED)
            inherited = None
        else:
            context = multiprocessing.get_context("fork")
            inherited = [other.stdout.fileno() for other in siblings if not other.stdout.closed]
        pipes = [context.Pipe(duplex=False) for _ in range(1 + own_stderr)]
        writers = [writer for _, writer in pipes]
        stdin: Connection | None = None
        self.stdin: TextIO | None = None
        if is_server:
            stdin, write = context.Pipe(duplex=False)
            self.stdin = os.fdopen(os.dup(write.fileno()), "w")
            write.close()
            writers.append(Connection(os.dup(2), readable=False))
        own = (module, list(arguments), dict(env), in_own_group, os.getcwd())
        self._process = context.Process(target=_run, args=(*own, stdin, writers, inherited))
        self._process.start()
        outputs = [os.fdopen(os.dup(reader.fileno()), errors="replace") for reader, _ in pipes]
        for end in (*(reader for reader, _ in pipes), *writers, *([stdin] if stdin else [])):
            end.close()
        self.stdout: TextIO = outputs[0]
        self.stderr: TextIO | None = outputs[1] if own_stderr else None
        self.pid: int = self._process.pid
        self._lock = threading.Lock()  # one thread at a time asks for the exit status

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the signal that ended the program; None while it runs."""
        with self._lock:
            return self._process.exitcode

    def poll(self) -> int | None:
        """Returns `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end; returns `returncode`; raises TimeoutExpired after some seconds."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        with self._lock:
            self._process.join()
            return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the program has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _ForkedServers:
    """Takes the place of the module subprocess in a program that starts a server of its own."""

    PIPE, TimeoutExpired = subprocess.PIPE, subprocess.TimeoutExpired

    @staticmethod
    def Popen(  # noqa: N802
        command: Sequence[str], env: Mapping[str, str], **_: object
    ) -> ForkedProgram:
        """Starts `python -u -m MODULE ARGUMENT...` in a session of its own."""
        module, *arguments = command[command.index("-m") + 1 :]
        return ForkedProgram(module, arguments, env, in_own_group=True, is_server=True)


def run(
    command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m MODULE ARGUMENT...` to its end; like subprocess.run with captured output."""
    _, option, module, *arguments = map(str, command)
    assert option == "-m", command
    environment = os.environ if env is None else env
    program = ForkedProgram(module, arguments, environment, own_stderr=True)
    texts: dict[str, str] = {}

    def read(name: str) -> None:
        with getattr(program, name) as output:
            texts[name] = output.read()

    readers = [threading.Thread(target=read, args=(name,)) for name in ("stdout", "stderr")]
    for reader in readers:
        reader.start()
    try:
        status = program.wait(HANG_SECS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
    return subprocess.CompletedProcess(command, status, **texts)


def _run(
    module: str,
    arguments: list[str],
    env: dict[str, str],
    in_own_group: bool,
    cwd: str,
    stdin: Connection | None,
    outputs: list[Connection],
    inherited: list[int] | None,
) -> None:
    if in_own_group:
        os.setsid()
    if stdin:
        os.dup2(stdin.fileno(), 0)
        stdin.close()
        sys.stdin = os.fdopen(0, closefd=False)
    for standard, output in ((1, outputs[0]), (2, outputs[-1])):
        os.dup2(output.fileno(), standard)
    for output in outputs:
        output.close()
    if inherited is not None:
        _forget_parent(inherited)
    setproctitle.setproctitle(" ".join((sys.executable, "-m", module, *arguments)))
    os.chdir(cwd)
    # The parent's own streams were made for other kinds of files.
    sys.stdout, sys.stderr = (_unbuffered(standard) for standard in (1, 2))
    os.environ.clear()
    os.environ.update(env)
    own_server.subprocess = _ForkedServers
    forkserver._forkserver.ensure_running = lambda: None  # it would start another: one runs
    sys.argv = [module, *arguments]
    sys.path[:0] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception as error:  # what the interpreter does with it
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


def _forget_parent(inherited: Iterable[int]) -> None:
    """Closes some files of the parent and undoes its signals' handlers."""
    for descriptor in inherited:
        os.close(descriptor)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _unbuffered(descriptor: int) -> TextIO:
    return io.TextIOWrapper(open(descriptor, "wb", 0, closefd=False), write_through=True)
