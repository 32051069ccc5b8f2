"""Programs that tests start, watch and end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from terngrad.cluster.managed import launch_variables
from terngrad.testing.addresses import free_ports
from terngrad.testing.forked import ForkedProgram
from terngrad.testing.limits import HANG_SECS


class Started(contextlib.AbstractContextManager):
    """A program that runs until it exits or its `with` block ends.

    A time-out kills the program and fails the test with all lines that it printed.

    Attributes:
      process: the program.
      lines: output of the program and its children so far, including stderr.
      reader: the thread that reads these lines.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        in_own_group: bool = False,
    ) -> None:
        """Starts a program.

        Args:
          command: program and arguments.
          env: variables to set in addition to those of this process.
          in_own_group: whether the program leads a new process group, which ends with it.
        """
        self.process = _start(command, {**os.environ, **(env or {})}, in_own_group)
        self._leads_group = in_own_group
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        """All lines so far, as one text."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> str:
        """Waits for a line that matches a regular expression; returns the line."""
        deadline = time.monotonic() + HANG_SECS
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.05)
        self.end()
        raise AssertionError(f"no line {pattern!r} in\n{self.output}")

    def finish(self) -> int:
        """Waits for the program to exit; returns its exit status."""
        try:
            status = self.process.wait(HANG_SECS)
            self.reader.join(HANG_SECS)
            return status
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"still running:\n{self.output}") from None

    def succeed(self) -> str:
        """Waits for the program to exit with status 0; returns its output."""
        status = self.finish()
        assert status == 0, self.output
        return self.output

    def outlived(self, secs: float = HANG_SECS) -> bool:
        """Waits for the program's process group to end; returns whether one still runs."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.1)
        return True

    def end(self) -> None:
        """Kills the program, all processes that it started, and its group."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts no more processes
            for process in [*descendants(self.process.pid), self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        if self._leads_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(HANG_SECS)

    def __exit__(self, *exception: object) -> None:
        self.end()


def _start(
    command: Sequence[str], env: Mapping[str, str], in_own_group: bool
) -> subprocess.Popen | ForkedProgram:
    interpreter, *rest = (word for word in command if word != "-u")
    if interpreter == sys.executable and rest[0] == "-m":
        return ForkedProgram(rest[1], rest[2:], env, in_own_group=in_own_group)
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=in_own_group,
    )


def descendants(process: int) -> list[int]:
    """Returns the ids of all descendants of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(after_name[1])
    found, generation = [], {process}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found += generation
    return found


def finished(
    commands: Sequence[Sequence[str]],
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
) -> list[tuple[str, int]]:
    """Runs programs at the same time; returns the output and exit status of each.

    Args:
      commands: programs and arguments.
      env: variables to set in addition to those of this process; a list has them for each program.
    """
    own = env if isinstance(env, Sequence) else [env] * len(commands)
    with contextlib.ExitStack() as stack:
        started = zip(commands, own, strict=True)
        runs = [stack.enter_context(Started(*each)) for each in started]
        statuses = [run.finish() for run in runs]
    return [(run.output, status) for run, status in zip(runs, statuses, strict=True)]


def launch_environments(workers: int, servers: int = 0) -> list[dict[str, str]]:
    """Returns what terngrad.launch gives workers, then parameter servers, on this machine."""
    control, *ports = free_ports(1 + workers + servers, "127.0.0.1")
    addresses = [f"127.0.0.1:{port}" for port in ports]
    hosts, ps_hosts = addresses[:workers], addresses[workers:]
    places = [("worker", i) for i in range(workers)] + [("ps", i) for i in range(servers)]
    return [launch_variables.variables(hosts, i, control, ps_hosts, job) for job, i in places]


@contextlib.contextmanager
def cluster(
    command: Sequence[str], workers: int, servers: int = 0
) -> Iterator[tuple[list[Started], Callable[..., Started]]]:
    """Starts a program as workers and parameter servers, which end with the `with` block.

    Yields:
      The workers, then the parameter servers; and what starts one of them again, by its index in
      this list, with the same or another command.
    """
    own = launch_environments(workers, servers)
    with contextlib.ExitStack() as stack:

        def start(index: int, command: Sequence[str] = command) -> Started:
            return stack.enter_context(Started(command, own[index]))

        yield [start(index) for index in range(len(own))], start


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition holds; raises AssertionError with what it waited for."""
    deadline = time.monotonic() + HANG_SECS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


def wait_for_files(*paths: Path) -> None:
    """Waits until files exist."""
    wait_until(lambda: all(path.exists() for path in paths), f"for {paths}")


def unread_after(text: str, command: Sequence[str]) -> list[str]:
    """Returns a command that runs another one and closes its output after a line with a text.

    The exit status is that of the other command.
    """
    script = f'"$@" | sed "/{text}/q"; exit ${{PIPESTATUS[0]}}'
    return ["bash", "-c", script, "-", *command]


def mpirun(processes: int) -> list[str]:
    """Returns the start of a command for MPI with several processes; skips the test without MPI."""
    program = Path(sys.executable).with_name("mpirun")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    if not program.exists():
        pytest.skip("mpich is not installed: pip install '.[mpi]'")
    return [str(program), "-np", str(processes), sys.executable, "-u"]
