"""The process of a server that a worker starts: python -m terngrad.library.own_server_process.

The first line of stdin says what to serve (own_server.py). It serves at most until the end of
stdin.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator

from terngrad.cluster.managed.role import Role
from terngrad.cluster.membership import reason_of
from terngrad.connect.certificates import Tls
from terngrad.library.join_config import JoinConfig
from terngrad.library.own_server import FAILED
from terngrad.training.signals import SIGNALS

_POLL_SECS = 1.0  # whether the worker lives


def _read(line: str) -> JoinConfig:
    content = json.loads(line)
    role = content["role"]
    for name in ("worker_hosts", "ps_hosts"):
        role[name] = tuple(role[name])
    tls = Tls(**content["tls"]) if content["tls"] else None
    return JoinConfig(role=Role(**role), tls=tls, **content["settings"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards what is written to stderr in the block."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def main() -> None:
    """Serves."""
    worker = os.getppid()
    for number in SIGNALS:  # the worker handles them
        signal.signal(number, signal.SIG_IGN)
    config = _read(sys.stdin.readline())
    with _quiet():  # TensorFlow logs something at any log level
        from terngrad.library import serving

    def end_with_the_worker() -> None:
        # A process that the worker has forked may keep stdin open.
        while os.getppid() == worker:
            if select.select([sys.stdin], [], [], _POLL_SECS)[0]:
                break
        os._exit(0)

    threading.Thread(target=end_with_the_worker, daemon=True).start()
    try:
        serving.serve_and_exit(config, None)
    except ValueError as error:
        print(f"{FAILED}{reason_of(error)}", flush=True)


if __name__ == "__main__":
    main()
