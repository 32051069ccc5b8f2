"""Programs on hosts of a network on this machine; see inception/cluster/network.sh."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from inception.cluster import namespaces
from terngrad.cluster.channel import split_address

UNSHAPED = namespaces.UNSHAPED
RATES = ("100mbit", "1gbit", UNSHAPED)
BITS_PER_SECOND = {"100mbit": 1e8, "1gbit": 1e9}
INTERFACE = "eth0"

_REPOSITORY = Path(__file__).parent.parent
_MAKE_CERTS = str(_REPOSITORY / "scripts/make_certs.sh")
_LOOK_SECS = 0.05
_GRACE_SECS = 20.0
# Otherwise processes of one machine would communicate through its memory.
_MPI_OVER_NETWORK = {
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": INTERFACE,
    "FI_PROVIDER": "tcp",
}


class Network(namespaces.Network):
    """Hosts that run programs."""

    def run_programs(self, commands: Sequence[Sequence[str]], timeout: float) -> None:
        """Runs a command on each host.

        Raises:
          ValueError: a command fails or takes longer; the message ends with its last lines.
        """
        with tempfile.TemporaryDirectory() as folder:
            _run(self._on_hosts(commands), self.environment, timeout, folder)

    def collect(self, commands: Sequence[Sequence[str]], timeout: float) -> list[list[dict]]:
        """Does as `run_programs`; returns the lists that the commands wrote to --output_dir=DIR."""
        return _collect(self._on_hosts(commands), len(commands), self.environment, timeout)

    @contextlib.contextmanager
    def serving(self, commands: Sequence[Sequence[str]], first: int) -> Iterator[list[int]]:
        """Runs a command on each host from `first` on, until the block ends.

        Yields:
          The process ids.

        Raises:
          ValueError: the block raised it; these commands' last lines are added to its message.
        """
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder, f"{i}.log") for i in range(len(commands))]
            hosts = self._on_hosts(commands, first)
            try:
                with _processes(hosts, logs, os.environ | self.environment) as processes:
                    yield [process.pid for process in processes]
            except ValueError as error:
                raise ValueError(f"{error}\n{_told(logs, range(len(logs)), first)}") from None

    def collect_with_mpi(self, command: Sequence[str], timeout: float) -> list[list[dict]]:
        """Runs a command on each host under mpirun; otherwise as `collect`.

        Raises:
          ValueError: as in `collect`, or there is no MPICH.
        """
        near = Path(sys.executable).with_name("mpiexec")
        mpiexec = str(near) if near.exists() else shutil.which("mpiexec")
        if not mpiexec:
            raise ValueError("engine mpi: mpiexec is not installed; pip install '.[mpi]'")
        on_host = f'exec bash "{namespaces.SCRIPT}" run "$PMI_RANK" "$@"'
        together = [mpiexec, "-n", str(self.size), "bash", "-c", on_host, "-", *command]
        environment = self.environment | _MPI_OVER_NETWORK
        return _collect([together], self.size, environment, timeout)

    def _on_hosts(self, commands: Sequence[Sequence[str]], first: int = 0) -> list[list[str]]:
        return [self.on_host(i, command) for i, command in enumerate(commands, first)]


def network(size: int) -> Network:
    """Returns a network of `size` hosts for this process, to be used in a with block."""
    return Network(f"terngrad{os.getpid()}", size)


@contextlib.contextmanager
def meeting(
    network: Network, engine: str, servers: int, flags: Sequence[str]
) -> Iterator[tuple[list[str], list[int]]]:
    """Provides what workers need to meet, until the block ends: parameter servers, certificates.

    Args:
      network: the hosts; the last `servers` ones are parameter servers, all others are workers.
      engine: of the exchange.
      servers: number of parameter servers; may be 0.
      flags: of the servers, beside those that say where all are.

    Yields:
      The flags that the workers need for it, and the servers' process ids.
    """
    if engine == "sockets_tls":
        with tempfile.TemporaryDirectory(prefix="certificates-") as folder:
            hosts = [split_address(address)[0] for address in network.addresses]
            subprocess.run(["bash", _MAKE_CERTS, folder, *hosts], check=True, capture_output=True)
            yield [f"--certificates={folder}"], []
    elif not servers:
        yield [], []
    else:
        with _serving(network, servers, flags) as running:
            yield running


@contextlib.contextmanager
def _serving(
    network: Network, count: int, flags: Sequence[str]
) -> Iterator[tuple[list[str], list[int]]]:
    first = network.size - count
    ps_hosts = f"--ps_hosts={','.join(network.addresses[first:])}"
    command = [
        *(sys.executable, "-m", "inception.mnist_distributed_train", "--job_name=ps", ps_hosts),
        f"--worker_hosts={','.join(network.addresses[:first])}",
        *("--allow_insecure_network", *flags),
    ]
    with network.serving([[*command, f"--task_id={i}"] for i in range(count)], first) as processes:
        yield [ps_hosts], processes


def _collect(
    commands: Sequence[Sequence[str]], size: int, environment: Mapping[str, str], timeout: float
) -> list[list[dict]]:
    with tempfile.TemporaryDirectory() as folder:
        told_where = [[*command, f"--output_dir={folder}"] for command in commands]
        _run(told_where, environment, timeout, folder)
        return [json.loads(Path(folder, f"{i}.json").read_text()) for i in range(size)]


def _run(
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    timeout: float,
    log_folder: str,
) -> None:
    logs = [Path(log_folder, f"{i}.log") for i in range(len(commands))]
    with _processes(commands, logs, os.environ | environment) as processes:
        _wait(processes, timeout)
        failed = [i for i, process in enumerate(processes) if process.poll() != 0]
    if failed:
        told = _told(logs, failed)
        raise ValueError(f"processes {failed} failed or took over {timeout:.0f} s:\n{told}")


def _told(logs: Sequence[Path], chosen: Sequence[int], first: int = 0) -> str:
    """Returns the last lines of the chosen logs; log 0 belongs to host `first`."""
    return "\n".join(f"[{first + i}] {logs[i].read_text()[-3000:]}" for i in chosen)


@contextlib.contextmanager
def _processes(
    commands: Sequence[Sequence[str]], logs: Sequence[Path], environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen]]:
    """Starts processes and ends them with the block."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_process(command, log, environment))
            for command, log in zip(commands, logs, strict=True)
        ]


@contextlib.contextmanager
def _process(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen]:
    """Starts a process and ends it with the block."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=_REPOSITORY,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_GRACE_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(processes: Sequence[subprocess.Popen], timeout: float) -> None:
    """Waits until all have ended, one has failed, or the time is over."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            return
        time.sleep(_LOOK_SECS)
