"""Starts all workers of a distributed training on this machine.

python -m inception.launch [--max_restarts=N] WORKERS PROGRAM FLAG...
python -m inception.launch 2 inception.mnist_distributed_train --data_dir=DIR --grad_bits=1

Each line begins with its worker. Ctrl-C ends all; the exit status is the first failure's. With
--max_restarts a failed training is started again from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import rich.console
import rich.text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_LOOK_SECS = 0.1
_GRACE_SECS = 90.0  # for the others to notice a failure, or to save, before they are killed


class StoppedError(Exception):
    """A signal asked to end."""

    def __init__(self, number: int) -> None:
        """Notes the signal."""
        super().__init__()
        self.number = number


@dataclasses.dataclass
class _Arguments:
    workers: int
    command: list[str]
    max_restarts: int = 0


def main(argv: Sequence[str]) -> int:
    """Runs the workers; returns the exit status."""
    arguments = _parse(argv)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _raise_stopped)
    console = rich.console.Console(highlight=False, soft_wrap=True)
    for attempt in range(arguments.max_restarts + 1):
        if attempt:
            console.print(
                f"Restart {attempt} of {arguments.max_restarts}, from the last checkpoint."
            )
        status = _run(arguments, console)
        if status <= 0 or status > 128:  # done, or a signal asked it to end
            return abs(status)
    return status


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def worker_flags(workers: int) -> list[list[str]]:
    """Flags that make each worker one of a cluster on this machine."""
    *ports, control = free_ports(workers + 1)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    common = [f"--worker_hosts={hosts}", f"--control_port={control}"]
    return [[*common, f"--task_id={i}"] for i in range(workers)]


def _parse(argv: Sequence[str]) -> _Arguments:
    rest = list(argv)
    restarts = 0
    if rest and rest[0].startswith("--max_restarts="):
        restarts = _whole_number(rest.pop(0).partition("=")[2], "--max_restarts", 0)
    if len(rest) < 2:
        sys.exit(f"launch: needs the number of workers and a program\n{__doc__.splitlines()[2]}")
    return _Arguments(_whole_number(rest[0], "WORKERS", 1), rest[1:], restarts)


def _whole_number(text: str, name: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        sys.exit(f"launch: {name} is {text!r}; allowed are whole numbers of {least} and more")
    return int(text)


def _run(arguments: _Arguments, console: rich.console.Console) -> int:
    """One attempt: 0, or the exit status of the first worker that failed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-u", "-m", *arguments.command, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        for flags in worker_flags(arguments.workers)
    ]
    readers = [
        threading.Thread(target=_show, args=(i, process, console), daemon=True)
        for i, process in enumerate(processes)
    ]
    for reader in readers:
        reader.start()
    try:
        status = _wait(processes)
    except StoppedError as stopped:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        _wait_for_all(processes, _GRACE_SECS)
        status = 128 + stopped.number
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for reader in readers:
        reader.join()
    return status


def _wait(processes: Sequence[subprocess.Popen]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if failed:
            _wait_for_all(processes, _GRACE_SECS)
            return failed[0] if failed[0] > 0 else 1  # killed: a failure like any other
        if None not in codes:
            return 0
        time.sleep(_LOOK_SECS)


def _wait_for_all(processes: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _show(worker: int, process: subprocess.Popen, console: rich.console.Console) -> None:
    colour = _COLOURS[worker % len(_COLOURS)]
    for line in process.stdout:
        console.print(rich.text.Text(f"[{worker}] ", style=colour) + line.rstrip("\n"))


def _raise_stopped(number: int, frame: object) -> None:
    del frame
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    raise StoppedError(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
