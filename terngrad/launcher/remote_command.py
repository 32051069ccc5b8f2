"""Runs a command that ends when the connection to its launcher ends.

python -m terngrad.launcher.remote_command PROGRAM ARGUMENT...

The first line of standard input is the secret of the training, see `run_secret`; other users could
read an argument. The other lines are the numbers of signals for the command. When the input ends,
for example because its ssh was killed, the command is asked to end, and killed 90 s after the first
request to end. What it prints then is dropped: it must not fail because nobody reads it.

The first line of output, `REACHED`, tells the launcher that ssh has reached this host. Status 255
of a command becomes 254: 255 is that of an ssh that has lost its connection.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from terngrad.cluster import run_secret
from terngrad.launcher import state
from terngrad.launcher.hosts import SSH_STATUS
from terngrad.launcher.process import GRACE_SECS, REACHED

_COPIED_BYTES = 1 << 16


def main(command: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    print(REACHED, flush=True)
    secret = sys.stdin.readline().removesuffix("\n")
    environment = os.environ | ({run_secret.VARIABLE: secret} if secret else {})
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", flush=True)
        return 127
    threading.Thread(target=_pass_on, args=(process,), daemon=True).start()
    outputs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    copies = [
        threading.Thread(target=_copy, args=(source.fileno(), to.fileno()), daemon=True)
        for source, to in outputs
    ]
    for copy in copies:
        copy.start()
    code = process.wait()
    state.send(process.pid, signal.SIGKILL)  # its children that still run
    for copy in copies:
        copy.join()
    return min(state.exit_status(code), SSH_STATUS - 1)


def _copy(source: int, to: int) -> None:
    """Copies an output to its end, or drops it where it cannot be written."""
    while some := os.read(source, _COPIED_BYTES):
        with contextlib.suppress(OSError):
            while some:
                some = some[os.write(to, some) :]


def _pass_on(process: subprocess.Popen) -> None:
    asked_at = math.inf
    for line in sys.stdin:
        if line.strip().isdecimal():
            asked_at = min(asked_at, time.monotonic())
            state.send(process.pid, int(line))
    asked_at = min(asked_at, time.monotonic())
    state.send(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, asked_at + GRACE_SECS - time.monotonic()))
    state.send(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
