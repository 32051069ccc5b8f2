"""Runs a command that ends when the connection to its launcher ends.

python -m terngrad.launcher.attended PROGRAM ARGUMENT...

The first line of standard input is the secret of the training, see `run_secret`, which arguments
would show to other users. The others are the numbers of signals for the command. The end of the
input, as when the ssh that brought it is killed, asks the command to end, and kills it after some
seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from terngrad.cluster import run_secret
from terngrad.launcher import state

_GRACE_SECS = 10.0


def main(command: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    secret = sys.stdin.readline().strip()
    environment = os.environ | ({run_secret.VARIABLE: secret} if secret else {})
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", flush=True)
        return 127
    threading.Thread(target=_pass_on, args=(process,), daemon=True).start()
    code = process.wait()
    state.send(process.pid, signal.SIGKILL)  # what it left behind
    return state.exit_status(code)


def _pass_on(process: subprocess.Popen) -> None:
    for line in sys.stdin:
        if line.strip().isdecimal():
            state.send(process.pid, int(line))
    state.send(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECS)
    state.send(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
