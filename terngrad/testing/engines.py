"""What `terngrad.testing.conformance` delivers on any engine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from terngrad.connect.config import ConnectConfig
from terngrad.coordination.states import Rules
from terngrad.exchange.parameter_server.server.reduction import Reduction
from terngrad.exchange.parameter_server.server.server import Server
from terngrad.ops.packing import ReferencePacking
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import finished


def delivered(
    kind: str,
    count: int,
    hosts: str,
    folder: Path,
    codecs: Sequence[str] = (),
    launcher: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Returns the results of each of `count` processes, which have 4 nodes in all.

    Args:
      kind: a connection of `conformance`.
      count: number of processes.
      hosts: see `conformance`.
      folder: where they write.
      codecs: names of the only codecs to run.
      launcher: the start of the command that starts all processes; else they are started here.
      env: variables to set.
    """
    ranks = [("0", folder / kind)] if launcher else []
    ranks = ranks or [(str(rank), folder / f"{kind}_{rank}.npz") for rank in range(count)]
    program = [*(launcher or [sys.executable]), "-m", "terngrad.testing.conformance", kind]
    commands = [[*program, rank, hosts, "4", str(file), *codecs] for rank, file in ranks]
    for output, status in finished(commands, env):
        assert status == 0, output
    return [dict(np.load(folder / f"{kind}_{rank}.npz")) for rank in range(count)]


@contextlib.contextmanager
def parameter_servers(servers: int, workers: int) -> Iterator[str]:
    """Yields the hosts of parameter servers that run in this process, and of their workers."""
    ps_hosts, worker_hosts = free_addresses(servers), [f"worker{i}:1" for i in range(workers)]
    rules = Rules(workers, False, HANG_SECS)
    with contextlib.ExitStack() as stack:
        for i, host in enumerate(ps_hosts):
            config = ConnectConfig(worker_hosts, i, ps_hosts, HANG_SECS)
            server = Server(config, Reduction(ReferencePacking()), rules)
            server.start(host)
            stack.callback(server.close)
        yield "/".join((",".join(ps_hosts), ",".join(worker_hosts)))
