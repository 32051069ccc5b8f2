"""What does a lost process cost the others?

Starts a training on this machine, kills or stops one process at a time, and starts it again. Prints
for each engine and fault, in seconds:

- a step: time between two steps before the fault
- lost: longest time between two steps of a healthy worker, from the fault on; inf if these make
  none within three time-outs, before the process is restarted
- joins: the same while the process joins again; after inf the time until they make the next step
- is back: from its start, or the end of its stop, to its first step
- ends: until the others have ended, if the fault ends the training

With --bandwidth each process has a host of its own (network namespaces on this machine, see
network.sh; needs root), and a cable is pulled, too.

torchft (PyTorch) and Horovod elastic are measured beside them if --torch_python and
--horovod_python name interpreters that have them. horovodrun starts Horovod's processes; in place
of one that was killed it gets a new host, since it never uses the host of a failed process again.

python -m benchmarks.fault_benchmark
python -m benchmarks.fault_benchmark --engines=all_reduce_elastic,torchft --torch_python=PYTHON
python -m benchmarks.fault_benchmark --engines=horovod_elastic --horovod_python=PYTHON
python -m benchmarks.fault_benchmark --values=25000000 --bandwidth=1gbit
"""

import contextlib
import dataclasses
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.host_network import HostNetwork, network
from benchmarks.workers.processes import LaunchedProcess, Output, Process
from inception.cluster.namespaces import BANDWIDTH
from inception.flags.table import TEXT, at_least, flag, number, refuse
from slim.datasets import files
from terngrad.cluster.addresses import split_address, unreserved_ports
from terngrad.cluster.managed import launch_variables

_STEPS = 5  # of each healthy worker, before a training counts as running
_START_SECS = 120.0
_POLL_SECS = 0.02
_MAX_TIMEOUTS = 3  # without a step: then the others are waiting for the end of the fault


@dataclasses.dataclass(frozen=True)
class Engine:
    """How processes exchange gradients.

    Attributes:
      ps: number of parameter servers.
      is_elastic: whether the others go on.
      faults: those that do not end it.
      library: the one that exchanges them.
    """

    ps: int
    is_elastic: bool
    faults: tuple[str, ...]
    library: str = "terngrad"


ENGINES = {
    "all_reduce": Engine(0, False, ()),
    "all_reduce_elastic": Engine(0, True, ("kill", "kill_first", "stop")),
    "parameter_servers": Engine(2, False, ()),
    "parameter_servers_elastic": Engine(2, True, ("kill", "kill_first", "stop", "kill_ps")),
    "torchft": Engine(0, True, ("kill", "kill_first", "stop"), "torchft"),
    "horovod_elastic": Engine(0, True, ("kill", "kill_first", "stop"), "horovod"),
}
_LIGHTHOUSE = "lighthouse 0"  # of torchft: decides who takes part
_HOROVODRUN = "horovodrun 0"  # starts the workers, and decides who takes part
_MORE_PROCESSES = {"torchft": _LIGHTHOUSE, "horovod": _HOROVODRUN}
_PROGRAMS = Path(__file__).parent / "workers"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(report.Options):
    """The flags of a training that a benchmark disturbs."""

    workers: int = flag("Distributed", at_least(3), 4, "number of workers")
    timeout_secs: float = flag(
        "Distributed", number(above=True), 20.0, "time-out of silent processes", "seconds"
    )
    values: int = flag("Training", at_least(1), 4096, "number of parameters")
    pause_ms: float = flag("Training", number(), 50.0, "pause of each worker after a step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    engines: tuple[str, ...] = report.names_flag(
        "Distributed",
        tuple(ENGINES),
        "engines",
        tuple(name for name, engine in ENGINES.items() if engine.library == "terngrad"),
    )
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torchft, for that engine")
    horovod_python: str = flag(
        "Runtime", TEXT, "", "interpreter with Horovod, for horovod_elastic; not with --bandwidth"
    )
    bandwidth: str | None = flag(
        "Distributed", BANDWIDTH, None, "of each process' own host; not set = all on this machine"
    )
    rounds: int = flag("Runtime", at_least(1), 3, "number of faults of each kind")


class _Hosts:
    """Names of this machine, one for each process of horovodrun, which reads them each second.

    Attributes:
      file: has a line for each name.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fault_benchmark")
        self.file = Path(self._folder.name, "hosts")
        self._names: dict[str, str] = {}
        self._zeros = 0

    def replace(self, process: str) -> Path:
        """Assigns a new host to a process; returns the pipe to which it will write."""
        # Horovod reaches other addresses of 127.0.0.0/8 by ssh only.
        self._names[process] = f"127.0.0.{'0' * self._zeros}1"
        self._zeros += 1
        with files.replacing_text(str(self.file)) as file:
            file.writelines(f"{name}:1\n" for name in self._names.values())
        return self.file.with_name(self._names[process])

    def close(self) -> None:
        self._folder.cleanup()


class Training:
    """The processes of a training, by name."""

    def __init__(
        self,
        options: TrainingOptions,
        engine: Engine,
        python: str = sys.executable,
        more: Sequence[str] = (),
        network: HostNetwork | None = None,
    ) -> None:
        """Starts them; `more` are options of benchmarks/workers/terngrad_loop.py.

        Args:
          options: those of the processes.
          engine: how they exchange gradients.
          python: interpreter that has the engine's library.
          more: options of benchmarks/workers/terngrad_loop.py.
          network: a host for each process; None: all are on this one.
        """
        self.engine = engine
        self._python, self._more, self._network = python, more, network
        self._horovod_hosts = _Hosts()
        self._timeout_secs = _START_SECS + 10 * options.timeout_secs
        count = options.workers + engine.ps
        if network:
            hosts = network.addresses[:count]
            self._control = split_address(hosts[0])[1] + 1
        else:
            self._control, *ports = unreserved_ports(count + 1, "127.0.0.1")
            hosts = [f"127.0.0.1:{port}" for port in ports]
        self._worker_hosts, self._ps_hosts = hosts[: options.workers], hosts[options.workers :]
        self._options = options
        names = [f"worker {rank}" for rank in range(options.workers)]
        names += [f"ps {index}" for index in range(engine.ps)]
        names += [_MORE_PROCESSES[engine.library]] if engine.library in _MORE_PROCESSES else []
        self._host_of = {name: index for index, name in enumerate(names)}
        self.processes = {name: self._start(name) for name in names}

    def _start(self, name: str) -> Process | LaunchedProcess:
        if self.engine.library == "horovod" and name != _HOROVODRUN:
            return LaunchedProcess(self._horovod_hosts.replace(name))
        command, variables = self._command(name)
        if not self._network:
            return Process(command, variables)
        trusted = {launch_variables.INSECURE: "1", **self._network.environment}
        trusted["GLOO_SOCKET_IFNAME"] = self._network.interface  # for torchft
        command = self._network.on_host(self._host_of[name], command)
        return Process(command, {**variables, **trusted})

    def _command(self, name: str) -> tuple[list[str], Mapping[str, str]]:
        job, index = name.split()
        settings = self._options
        common = [str(settings.values), str(settings.pause_ms), str(settings.timeout_secs)]
        if name == _HOROVODRUN:
            return self._horovodrun(), {}
        if self.engine.library == "terngrad":
            hosts = (self._worker_hosts, int(index), self._control, self._ps_hosts, job)
            elastic = ["elastic"] if self.engine.is_elastic else []
            command = [self._python, "-m", "benchmarks.workers.terngrad_loop", *common, *elastic]
            return [*command, *self._more], launch_variables.variables(*hosts)
        command = [self._python, str(_PROGRAMS / "torchft_loop.py")]
        if name == _LIGHTHOUSE:
            return [*command, job, str(self._control)], {}
        lighthouse = f"http://{self._host(_LIGHTHOUSE)}:{self._control}"
        return [*command, *common, lighthouse, index, self._host(name)], {}

    def _horovodrun(self) -> list[str]:
        settings, hosts = self._options, self._horovod_hosts.file
        flags = {
            "-np": settings.workers,
            "--min-np": 1,
            "--max-np": settings.workers,
            "--network-interfaces": "lo",
            "--host-discovery-script": f"cat {hosts}",
            "--gloo-timeout-seconds": math.ceil(settings.timeout_secs),
        }
        command = [self._python, "-m", "horovod.runner.launch", "--gloo"]
        command += [str(text) for pair in flags.items() for text in pair]
        command += [self._python, str(_PROGRAMS / "horovod_loop.py"), str(hosts.parent)]
        return [*command, str(settings.values), str(settings.pause_ms)]

    def _host(self, name: str) -> str:
        if not self._network:
            return "127.0.0.1"
        return split_address(self._network.addresses[self._host_of[name]])[0]

    def set_connected(self, name: str, connected: bool) -> None:
        """Pulls the cable of the host of a process, or puts it back."""
        assert self._network
        self._network.set_connected(self._host_of[name], connected)

    def start_again(self, name: str) -> None:
        """Starts a new process in the place of one that has ended."""
        self.processes[name] = self._start(name)

    def worker(self, rank: int) -> str:
        """Returns the name of the worker that has a rank now."""
        ranks = {process.rank: name for name, process in self.processes.items()}
        return ranks.get(rank, f"worker {rank}")

    def workers(self, but: Sequence[str] = ()) -> list[Process | LaunchedProcess]:
        """Returns the processes of all workers but those of some names."""
        return [
            process
            for name, process in self.processes.items()
            if name.startswith("worker") and name not in but
        ]

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds.

        Raises:
          RuntimeError: it did not; the message has the output of the processes.
        """
        if not self._holds_within(self._timeout_secs, condition):
            output = "\n".join(
                f"{name}: {''.join(process.lines)}" for name, process in self.processes.items()
            )
            raise RuntimeError(
                f"no {what} within {self._timeout_secs:g} s, or all ended:\n{output}"
            )

    def _holds_within(self, secs: float, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + secs
        while not condition():
            runs = any(process.is_running() for process in self.processes.values())
            if not runs or time.monotonic() > end:
                return False
            time.sleep(_POLL_SECS)
        return True

    def wait_for_steps(self, workers: Sequence[Output]) -> float:
        """Waits until each worker has made some steps from now on; returns when that was."""
        now = time.monotonic()
        self.wait_for("steps", lambda: _make_steps(workers, now))
        return now

    def make_steps(self, workers: Sequence[Output]) -> bool:
        """Returns whether each worker makes some steps within some time-outs from now on."""
        now, secs = time.monotonic(), _MAX_TIMEOUTS * self._options.timeout_secs
        return self._holds_within(secs, lambda: _make_steps(workers, now))

    def close(self) -> None:
        """Kills all processes."""
        for process in reversed(self.processes.values()):  # first horovodrun, which starts others
            process.close()
        self._horovod_hosts.close()


def _make_steps(workers: Sequence[Output], since: float) -> bool:
    return all(worker.steps_after(since) >= _STEPS for worker in workers)


def _victim(fault: str, options: _Options, training: Training) -> str:
    if fault == "kill_ps":
        return "ps 1"
    ranks = {"kill_first": 0, "kill": options.workers - 2}
    return training.worker(ranks.get(fault, options.workers - 1))


def _hit(training: Training, fault: str, victim: str) -> None:
    if fault == "pull":
        training.set_connected(victim, False)
    else:
        stops = fault == "stop"
        training.processes[victim].send(signal.SIGSTOP if stops else signal.SIGKILL)


def _mend(training: Training, fault: str, victim: str) -> None:
    if fault == "pull":
        training.set_connected(victim, True)
    elif fault == "stop":
        training.processes[victim].send(signal.SIGCONT)
    else:
        training.start_again(victim)


def _disturb(training: Training, options: _Options, fault: str) -> dict[str, float]:
    """Injects a fault and ends it; returns the seconds of each column."""
    training.wait_for_steps(training.workers())
    victim = _victim(fault, options, training)
    others = training.workers(but=[victim])
    begin = training.wait_for_steps(others)
    found = {"a step": statistics.median(others[0].waits(begin))}
    fault_at = time.monotonic()
    _hit(training, fault, victim)
    go_on = training.make_steps(others)
    found["lost"] = max(max(each.waits(fault_at)) for each in others) if go_on else math.inf
    back_at = time.monotonic()
    _mend(training, fault, victim)
    training.wait_for_steps(training.workers())
    if go_on:
        found["joins"] = max(max(each.waits(back_at)) for each in others)
    else:
        found["joins"] = max(each.first_step_after(back_at) for each in others) - back_at
    if victim.startswith("worker"):
        found["is back"] = training.processes[victim].first_step_after(back_at) - back_at
    return found


def _end(options: _Options, engine: Engine, fault: str) -> dict[str, float]:
    """Injects a fault that ends a training; returns the seconds until the others have ended."""
    with _training(options, engine) as training:
        training.wait_for_steps(training.workers())
        victim = _victim(fault, options, training)
        others = training.workers(but=[victim])
        begin = time.monotonic()
        _hit(training, fault, victim)
        ended = lambda: not any(each.is_running() for each in others)
        training.wait_for("end of the others", ended)
        return {"ends": time.monotonic() - begin}


@contextlib.contextmanager
def _training(options: _Options, engine: Engine) -> Iterator[Training]:
    """Runs a training until the block ends, on hosts of its own with --bandwidth."""
    with contextlib.ExitStack() as stack:
        hosts = None
        if options.bandwidth:
            size = options.workers + engine.ps + (engine.library in _MORE_PROCESSES)
            hosts = stack.enter_context(network(size))
            hosts.shape(options.bandwidth)
        pythons = {"torchft": options.torch_python, "horovod": options.horovod_python}
        python = pythons.get(engine.library, sys.executable)
        training = Training(options, engine, python, network=hosts)
        yield stack.enter_context(contextlib.closing(training))


def main(options: _Options) -> None:
    """Prints a row for each engine and fault."""
    if "torchft" in options.engines and not options.torch_python:
        raise refuse("torch_python", "", "the engine torchft needs an interpreter with torchft")
    if "horovod_elastic" in options.engines:
        if not options.horovod_python:
            what = "the engine horovod_elastic needs an interpreter with Horovod"
            raise refuse("horovod_python", "", what)
        if options.bandwidth:
            what = "horovodrun starts the processes of horovod_elastic on this machine"
            raise refuse("bandwidth", options.bandwidth, what)
    rows, figures = [], {}
    pulls = ("pull",) if options.bandwidth else ()
    for name in options.engines:
        engine = ENGINES[name]
        found: dict[str, list[dict[str, float]]] = {}
        if engine.faults:
            for _ in range(options.rounds):  # anew: after kill_first another worker is the first
                with _training(options, engine) as training:
                    for fault in (*engine.faults, *pulls):
                        found.setdefault(fault, []).append(_disturb(training, options, fault))
        else:
            for fault in ("kill", "kill_first", "stop", *pulls) * options.rounds:
                found.setdefault(fault, []).append(_end(options, engine, fault))
        for fault, each in found.items():
            rows.append({"engine": name, "fault": fault, **_cells(each)})
        figures[name] = {fault: [_in_json(times) for times in found[fault]] for fault in found}
    report.print_table(rows, "Seconds, median and largest", texts=2)
    report.conclude(options, {"seconds": figures})


def _in_json(times: Mapping[str, float]) -> dict[str, float | None]:
    """Returns None for what is infinite, for which JSON has no number."""
    return {name: secs if math.isfinite(secs) else None for name, secs in times.items()}


def _cells(found: Sequence[Mapping[str, float]]) -> dict[str, str]:
    cells = {}
    for column in found[0]:
        values = [each[column] for each in found]
        cells[column] = f"{statistics.median(values):.2f}, {max(values):.2f}"
    return cells


if __name__ == "__main__":
    report.run(main, _Options)
