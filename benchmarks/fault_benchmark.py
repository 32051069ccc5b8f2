"""What does a lost process cost the others?

Starts a training on this machine, kills or stops one process at a time, and starts it again. Prints
for each engine and fault, in seconds:

- a step: time between two steps before the fault
- lost: longest time between two steps of a worker that is well, from the fault on
- joins: the same while the process comes back
- is back: from its start, or the end of its stop, to its first step
- ends: until the others ended, where the fault ends the training

With --bandwidth each process has a host of its own (network namespaces on this machine, see
network.sh; needs root), and a cable is pulled, too.

torchft (PyTorch) is measured beside them if --torch_python names an interpreter that has it.

python -m benchmarks.fault_benchmark
python -m benchmarks.fault_benchmark --engines=all_reduce_elastic,torchft --torch_python=PYTHON
python -m benchmarks.fault_benchmark --values=25000000 --bandwidth=1gbit
"""

import contextlib
import dataclasses
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import report
from benchmarks.host_network import HostNetwork, network
from inception.cluster.namespaces import BANDWIDTH
from inception.flags.table import TEXT, at_least, flag, number, refuse
from terngrad.cluster.addresses import free_ports, split_address
from terngrad.cluster.managed import launch_variables

_STEPS = 5  # of each worker that is well, to call a training undisturbed
_START_SECS = 120.0
_LOOK_SECS = 0.02
_LINES = 200  # of each process, shown if the benchmark fails


@dataclasses.dataclass(frozen=True)
class Engine:
    """How processes exchange gradients.

    Attributes:
      ps: number of parameter servers.
      is_elastic: whether the others go on.
      faults: those that do not end it.
      is_torchft: whether these are processes of torchft, which adds a lighthouse.
    """

    ps: int
    is_elastic: bool
    faults: tuple[str, ...]
    is_torchft: bool = False


ENGINES = {
    "all_reduce": Engine(0, False, ()),
    "all_reduce_elastic": Engine(0, True, ("kill", "kill_first", "stop")),
    "parameter_servers": Engine(2, False, ()),
    "parameter_servers_elastic": Engine(2, True, ("kill", "kill_first", "stop", "kill_ps")),
    "torchft": Engine(0, True, ("kill", "kill_first", "stop"), is_torchft=True),
}
_LIGHTHOUSE = "lighthouse 0"  # of torchft: decides who takes part
_TORCHFT = str(Path(__file__).parent / "workers" / "torchft_loop.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(report.Options):
    """What its processes are told."""

    workers: int = flag("Distributed", at_least(3), 4, "number of workers")
    timeout_secs: float = flag(
        "Distributed", number(above=True), 20.0, "time-out of silent processes", "seconds"
    )
    values: int = flag("Training", at_least(1), 4096, "number of parameters")
    pause_ms: float = flag("Training", number(), 50.0, "pause of each worker after a step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    engines: tuple[str, ...] = report.some(
        "Distributed", tuple(ENGINES), "engines", tuple(ENGINES)[:-1]
    )
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torchft, for that engine")
    bandwidth: str | None = flag(
        "Distributed", BANDWIDTH, None, "of each process' own host; not set = all on this machine"
    )
    rounds: int = flag("Runtime", at_least(1), 3, "number of faults of each kind")


class Process:
    """A process of the training, and when it made which step.

    Attributes:
      pid: process id.
      started: when it was started.
      steps: moments of its steps.
      checksums: number and checksum of the weights of each step, where it prints them.
      lines: the last ones of its other output.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.started = time.monotonic()
        self.steps: list[float] = []
        self.checksums: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self._run = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._run.pid
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._run.stdout
        with self._run.stdout as output:
            for line in output:
                if found := re.match(r"step (\d+)(?: (\w+))?$", line):
                    self.steps.append(time.monotonic())
                    if found[2]:
                        self.checksums.append((int(found[1]), found[2]))
                else:
                    self.lines = [*self.lines[1 - _LINES :], line]

    def steps_after(self, moment: float) -> int:
        return sum(step > moment for step in self.steps)

    def first_step_after(self, moment: float) -> float:
        return next(step for step in self.steps if step > moment)

    def waits(self, begin: float, until: float = math.inf) -> list[float]:
        """Returns the times between two steps, of which the second was after a moment.

        The first one was not after `until`.
        """
        pairs = pairwise(self.steps)
        return [after - before for before, after in pairs if after > begin and before <= until]

    def is_running(self) -> bool:
        return self._run.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._run.send_signal(number)
        if number == signal.SIGKILL:
            self._run.wait()

    def close(self) -> None:
        self._run.kill()
        self._run.wait()


class Training:
    """The processes of a training, by name."""

    def __init__(
        self,
        options: TrainingOptions,
        engine: Engine,
        torch_python: str = "",
        more: Sequence[str] = (),
        network: HostNetwork | None = None,
    ) -> None:
        """Starts them; `more` are options of benchmarks/workers/fault.py.

        Args:
          options: what the processes are told.
          engine: how they exchange gradients.
          torch_python: interpreter with torchft, for that engine.
          more: options of benchmarks/workers/fault.py.
          network: a host for each process; None: all are on this one.
        """
        self.engine = engine
        self._torch_python, self._more, self._network = torch_python, more, network
        self._timeout_secs = _START_SECS + 10 * options.timeout_secs
        count = options.workers + engine.ps
        if network:
            hosts = network.addresses[:count]
            self._control = split_address(hosts[0])[1] + 1
        else:
            self._control, *ports = free_ports(count + 1, "127.0.0.1")
            hosts = [f"127.0.0.1:{port}" for port in ports]
        self._worker_hosts, self._ps_hosts = hosts[: options.workers], hosts[options.workers :]
        self._options = options
        names = [f"worker {rank}" for rank in range(options.workers)]
        names += [f"ps {index}" for index in range(engine.ps)]
        names += [_LIGHTHOUSE] if engine.is_torchft else []
        self._host_of = {name: index for index, name in enumerate(names)}
        self.processes = {name: self._start(name) for name in names}

    def _start(self, name: str) -> Process:
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
        if not self.engine.is_torchft:
            hosts = (self._worker_hosts, int(index), self._control, self._ps_hosts, job)
            elastic = ["elastic"] if self.engine.is_elastic else []
            command = [sys.executable, "-m", "benchmarks.workers.fault", *common, *elastic]
            return [*command, *self._more], launch_variables.variables(*hosts)
        command = [self._torch_python, _TORCHFT]
        if name == _LIGHTHOUSE:
            return [*command, job, str(self._control)], {}
        lighthouse = f"http://{self._host(_LIGHTHOUSE)}:{self._control}"
        return [*command, *common, lighthouse, index, self._host(name)], {}

    def _host(self, name: str) -> str:
        if not self._network:
            return "127.0.0.1"
        return split_address(self._network.addresses[self._host_of[name]])[0]

    def connect(self, name: str, connected: bool) -> None:
        """Pulls the cable of the host of a process, or puts it back."""
        assert self._network
        self._network.connect(self._host_of[name], connected)

    def start_again(self, name: str) -> None:
        self.processes[name] = self._start(name)

    def workers(self, but: Sequence[str] = ()) -> list[Process]:
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
        end = time.monotonic() + self._timeout_secs
        while not condition():
            runs = any(process.is_running() for process in self.processes.values())
            if not runs or time.monotonic() > end:
                output = "\n".join(
                    f"{name}: {''.join(process.lines)}" for name, process in self.processes.items()
                )
                raise RuntimeError(
                    f"no {what} within {self._timeout_secs:g} s, or all ended:\n{output}"
                )
            time.sleep(_LOOK_SECS)

    def wait_for_steps(self, workers: Sequence[Process]) -> float:
        """Waits until each worker has made some steps from now on; returns when that was."""
        now = time.monotonic()
        enough = lambda: all(worker.steps_after(now) >= _STEPS for worker in workers)
        self.wait_for("steps", enough)
        return now

    def close(self) -> None:
        """Kills all processes."""
        for process in self.processes.values():
            process.close()


def _victim(fault: str, options: _Options) -> str:
    if fault == "kill_ps":
        return "ps 1"
    ranks = {"kill_first": 0, "kill": options.workers - 2}
    return f"worker {ranks.get(fault, options.workers - 1)}"


def _hit(training: Training, fault: str, victim: str) -> None:
    if fault == "pull":
        training.connect(victim, False)
    else:
        stops = fault == "stop"
        training.processes[victim].send(signal.SIGSTOP if stops else signal.SIGKILL)


def _mend(training: Training, fault: str, victim: str) -> None:
    if fault == "pull":
        training.connect(victim, True)
    elif fault == "stop":
        training.processes[victim].send(signal.SIGCONT)
    else:
        training.start_again(victim)


def _disturb(training: Training, options: _Options, fault: str) -> dict[str, float]:
    """Lets a fault happen and mends it; returns the seconds of each column."""
    training.wait_for_steps(training.workers())
    victim = _victim(fault, options)
    others = training.workers(but=[victim])
    begin = training.wait_for_steps(others)
    found = {"a step": statistics.median(others[0].waits(begin))}
    fault_at = time.monotonic()
    _hit(training, fault, victim)
    training.wait_for_steps(others)
    found["lost"] = max(max(each.waits(fault_at)) for each in others)
    back_at = time.monotonic()
    _mend(training, fault, victim)
    training.wait_for_steps(training.workers())
    found["joins"] = max(max(each.waits(back_at)) for each in others)
    if victim.startswith("worker"):
        found["is back"] = training.processes[victim].first_step_after(back_at) - back_at
    return found


def _end(options: _Options, engine: Engine, fault: str) -> dict[str, float]:
    """Lets a fault end a training; returns after how many seconds the others had ended."""
    with _training(options, engine) as training:
        training.wait_for_steps(training.workers())
        victim = _victim(fault, options)
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
            size = options.workers + engine.ps + engine.is_torchft
            hosts = stack.enter_context(network(size))
            hosts.shape(options.bandwidth)
        training = Training(options, engine, options.torch_python, network=hosts)
        yield stack.enter_context(contextlib.closing(training))


def main(options: _Options) -> None:
    """Prints a row for each engine and fault."""
    if "torchft" in options.engines and not options.torch_python:
        raise refuse("torch_python", "", "the engine torchft needs an interpreter with torchft")
    rows, figures = [], {}
    pulls = ("pull",) if options.bandwidth else ()
    for name in options.engines:
        engine = ENGINES[name]
        found: dict[str, list[dict[str, float]]] = {}
        if engine.faults:
            with _training(options, engine) as training:
                for fault in (*engine.faults, *pulls) * options.rounds:
                    found.setdefault(fault, []).append(_disturb(training, options, fault))
        else:
            for fault in ("kill", "kill_first", "stop", *pulls) * options.rounds:
                found.setdefault(fault, []).append(_end(options, engine, fault))
        for fault, each in found.items():
            rows.append({"engine": name, "fault": fault, **_cells(each)})
        figures[name] = found
    report.print_table(rows, "Seconds, median and largest", texts=2)
    report.conclude(options, {"seconds": figures})


def _cells(found: Sequence[Mapping[str, float]]) -> dict[str, str]:
    cells = {}
    for column in found[0]:
        values = [each[column] for each in found]
        cells[column] = f"{statistics.median(values):.2f}, {max(values):.2f}"
    return cells


if __name__ == "__main__":
    report.run(main, _Options)
