"""Runs programs on the hosts of a simulated network; see inception/cluster/network.sh."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import report
from inception.cluster import namespaces
from terngrad.cluster.addresses import split_address, unreserved_ports

UNSHAPED = namespaces.UNSHAPED
RATES = ("100mbit", "1gbit", UNSHAPED)
BITS_PER_SECOND = {"100mbit": 1e8, "1gbit": 1e9}

_REPOSITORY = Path(__file__).parent.parent
_MAKE_CERTS = str(_REPOSITORY / "scripts/make_certs.sh")
_POLL_SECS = 0.05
_GRACE_SECS = 20.0


class HostNetwork(namespaces.NamespaceNetwork):
    """A simulated network whose hosts run programs.

    Attributes:
      interface: network interface of a host.
    """

    interface = "eth0"

    def run_programs(self, commands: Sequence[Sequence[str]], timeout: float) -> None:
        """Runs a command on each host.

        Raises:
          ValueError: a command fails or takes longer; the message ends with its last lines.
        """
        _run(self._on_hosts(commands), self.environment, timeout)

    def collect(self, commands: Sequence[Sequence[str]], timeout: float) -> list[list[dict]]:
        """As `run_programs`; also returns the lists that the commands wrote to --output_dir=DIR."""
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
            hosts = self._on_hosts(commands, first)
            try:
                with _processes(hosts, folder, self.environment) as processes:
                    yield [process.pid for process in processes]
            except ValueError as error:
                raise ValueError(f"{error}\n{_outputs(folder, range(len(hosts)), first)}") from None

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
        over_network = {  # else processes of one machine would communicate through its memory
            "MPIR_CVAR_NOLOCAL": "1",
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": self.interface,
            "FI_PROVIDER": "tcp",
        }
        return _collect([together], self.size, self.environment | over_network, timeout)

    def _on_hosts(self, commands: Sequence[Sequence[str]], first: int = 0) -> list[list[str]]:
        return [self.on_host(i, command) for i, command in enumerate(commands, first)]


class Loopback(HostNetwork):
    """Processes on this machine in place of hosts."""

    interface = "lo"

    def __enter__(self) -> Loopback:
        """Needs no preparation."""
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @functools.cached_property
    def addresses(self) -> list[str]:
        """HOST:PORT of each process."""
        return [f"127.0.0.1:{port}" for port in unreserved_ports(self.size)]

    def on_host(self, index: int, command: Sequence[str]) -> list[str]:
        """Returns the command itself."""
        return [*command]


def network(size: int, kind: type[HostNetwork] = HostNetwork) -> HostNetwork:
    """Returns a network of `size` hosts for this process, to be used in a with block."""
    return kind(f"terngrad{os.getpid()}", size)


@contextlib.contextmanager
def exchange_services(
    network: HostNetwork, engine: str, workers: int, servers: int
) -> Iterator[tuple[list[str], list[int]]]:
    """Runs parameter servers and makes certificates for workers, until the block ends.

    Args:
      network: the hosts: first the workers, then the parameter servers.
      engine: engine of the exchange.
      workers: number of workers.
      servers: number of parameter servers; may be 0.

    Yields:
      The flags that the workers need to join, and the servers' process ids.
    """
    worker_hosts = f"--worker_hosts={','.join(network.addresses[:workers])}"
    flags = [f"--engine={engine}", f"--interface={network.interface}", worker_hosts]
    with contextlib.ExitStack() as stack:
        if engine == "sockets_tls":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="certificates-"))
            hosts = [split_address(address)[0] for address in network.addresses]
            subprocess.run(["bash", _MAKE_CERTS, folder, *hosts], check=True, capture_output=True)
            flags.append(f"--certificates={folder}")
        processes: list[int] = []
        if servers:
            ps_hosts = f"--ps_hosts={','.join(network.addresses[workers:])}"
            flags.append(ps_hosts)
            command = report.module("inception.mnist_distributed_train")
            command += ["--job_name=ps", "--allow_insecure_network", worker_hosts, ps_hosts]
            commands = [[*command, f"--task_id={i}"] for i in range(servers)]
            processes = stack.enter_context(network.serving(commands, workers))
        yield flags, processes


def _collect(
    commands: Sequence[Sequence[str]], size: int, environment: Mapping[str, str], timeout: float
) -> list[list[dict]]:
    with tempfile.TemporaryDirectory() as folder:
        with_folder = [[*command, f"--output_dir={folder}"] for command in commands]
        _run(with_folder, environment, timeout)
        return [json.loads(Path(folder, f"{i}.json").read_text()) for i in range(size)]


def _run(commands: Sequence[Sequence[str]], environment: Mapping[str, str], timeout: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with _processes(commands, folder, environment) as processes:
            _wait(processes, timeout)
            failed = [i for i, process in enumerate(processes) if process.poll() != 0]
        if failed:
            outputs = _outputs(folder, failed)
            raise ValueError(f"processes {failed} failed or took over {timeout:.0f} s:\n{outputs}")


def _outputs(folder: str, chosen: Sequence[int], first: int = 0) -> str:
    """Returns the last lines of the chosen processes; process 0 is on host `first`."""
    last = {i: Path(folder, f"{i}.log").read_text()[-3000:] for i in chosen}
    return "\n".join(f"[{first + i}] {lines}" for i, lines in last.items())


@contextlib.contextmanager
def _processes(
    commands: Sequence[Sequence[str]], folder: str, environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen]]:
    """Starts processes, whose lines go to files of a folder, and ends them with the block."""
    with contextlib.ExitStack() as stack:
        started = []
        for i, command in enumerate(commands):
            file = stack.enter_context(Path(folder, f"{i}.log").open("w"))
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
                cwd=_REPOSITORY,
            )
            stack.callback(_end, process)
            started.append(process)
        yield started


def _end(process: subprocess.Popen) -> None:
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
        time.sleep(_POLL_SECS)
