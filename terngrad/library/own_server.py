"""A parameter server beside each worker: an all-reduce that goes on without lost processes.

Each worker starts one, at its own address, in a process of its own (own_server_process.py). It ends
with its worker. One of them decides which workers make steps together. The workers exchange their
gradients by a mesh (exchange/parameter_server/elastic_mesh.py); only where steps are made without
some workers, or there are no native kernels, each server adds a share of the values.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

from terngrad.coordination.coordinator import TAKES_OVER, WAITS
from terngrad.library.join_config import JoinConfig

_END_SECS = 5.0
_START_SECS = 300.0  # on a busy machine TensorFlow takes long to load
FAILED = "failed: "  # prefix of the line with the reason why a server did not start
# It computes on the CPU, and TensorFlow logs nothing.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONSAFEPATH": "1"}
_DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1"}


@contextlib.contextmanager
def started(config: JoinConfig) -> Iterator[None]:
    """Serves until the end of the block, and then until the others are done.

    Args:
      config: of this worker, `with_own_servers`.

    Raises:
      ValueError: the server cannot listen, or something in the configuration is wrong.
    """
    folders = [folder or os.getcwd() for folder in sys.path]  # it finds the same modules
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "terngrad.library.own_server_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # a terminal's signals are for the worker
        env=_DEFAULTS | os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(folders)},
    )
    try:
        with contextlib.suppress(OSError):  # it has ended; that is seen below
            server.stdin.write(_written(config))
            server.stdin.flush()
        is_there, *_ = select.select([server.stdout], [], [], _START_SECS)
        late = f"{FAILED}its server did not start within {_START_SECS:g} s"
        first = server.stdout.readline() if is_there else late
        if not first or first.startswith(FAILED):
            raise config.naming.refuse("hosts", config.role.worker_hosts, _why(first))
        prints_all = config.role.task_id == 0  # the first server logs which workers take part
        if prints_all:
            _print(first)
        reader = threading.Thread(target=_relay, args=(server, prints_all), daemon=True)
        reader.start()
        yield
        with contextlib.suppress(subprocess.TimeoutExpired):  # until the others are done, too
            server.wait(config.timeout_secs)
        reader.join(1.0)
    finally:
        with contextlib.suppress(OSError):
            server.stdin.close()  # ends the server, as the death of this process does
        try:
            server.wait(_END_SECS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _why(line: str) -> str:
    return line.removeprefix(FAILED).strip() or "the process that serves there has ended"


def _relay(server: subprocess.Popen, prints_all: bool) -> None:
    for line in server.stdout:
        prints_all = prints_all or TAKES_OVER in line or WAITS in line
        if prints_all:
            _print(line)


def _print(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # stdout is closed
        print(line, end="", flush=True)


def _written(config: JoinConfig) -> str:
    """Returns a line with what the server needs to know."""
    fields = dataclasses.asdict(config.role) | {"job_name": "ps"}
    names = (
        "timeout_secs",
        "allow_insecure_network",
        "num_replicas_to_aggregate",
        "elastic",
        "min_size",
        "elastic_wait_secs",
        "has_own_servers",
        "lacks_kernels",
        "network_interface",
    )
    settings = {name: getattr(config, name) for name in names}
    tls = dataclasses.asdict(config.tls) if config.tls else None
    return json.dumps({"role": fields, "tls": tls, "settings": settings}) + "\n"
