"""Does a training lose anything when its processes and connections are disturbed at random?

Trains LeNet on MNIST with workers and parameter servers on this machine. At random moments it kills
a process, which the launcher restarts, stops one for some seconds, cuts the connections between a
worker and a ps, or floods a ps with a thousand idle connections. At the end all processes save; a
second training makes the same number of steps undisturbed, and the parameters are compared bit for
bit. The last worker is never killed: it shows whether memory grows, and names each step once.

bash scripts/make_certs.sh CERTS 127.0.0.1
python -m benchmarks.soak --data_dir=DIR --output_dir=DIR --certs_dir=CERTS --json=figures.json \
    --png=figure.png
"""

import collections
import contextlib
import dataclasses
import math
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.workers import paced_mnist
from benchmarks.workers.processes import check_can_cut, cut_connections, resident_mb
from inception.flags.table import TEXT, at_least, flag, number
from inception.training.evaluate import measure_checkpoints
from terngrad.training import checkpoints

_POLL_SECS = 1.0
_SAMPLES = 400  # of memory, of each process
_WRITE_SECS = 60.0
_END_SECS = 300.0
_MINUTE = 60.0
_RESTARTS = 10_000
_ENDLESS = 100_000_000  # steps
_STEPS_AFTER = 3  # steps of each worker after the last fault: all have trained on
_SHORTEST_SECS = 1.0  # of a freeze or a flood
_LONGEST_FREEZE = 0.6  # of --worker_timeout_secs: a worker that is away for longer counts as lost
_FLOOD_CONNECTIONS = 1000
_FLOOD_SECS = 20.0
_UNKNOWN_CALLER = "127.0.0.2"  # no member's host
_NOTHING = "nothing: it was away"
_COLOURS = {"kill": "red", "freeze": "blue", "cut": "orange", "flood": "green"}
_KEPT = re.compile("variables|averages|slots")  # what is compared
_STEP = re.compile(r"\[(\d+)\] Worker \d+: .*: step (\d+),")
_VIEW = re.compile(
    r"\[ps \d+\] Workers? .* train from step (\d+) on(?:.* gives its state to workers? (.*))?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.MnistOptions):
    ps: int = flag("Distributed", at_least(1), 2, "number of parameter servers", "servers")
    workers: int = flag("Distributed", at_least(2), 3, "workers; the last is never killed")
    worker_timeout_secs: float = flag(
        "Distributed", number(above=True), 60.0, "--worker_timeout_secs of the workers", "seconds"
    )
    certs_dir: str = flag("Distributed", TEXT, "", "what make_certs.sh made; not set = no TLS")
    batch_size: int = flag("Training", at_least(1), 32, "images per worker and step", "images")
    pause_ms: float = flag("Training", number(), 0.0, "a worker's mean pause before each batch")
    minutes: float = flag("Runtime", number(above=True), 30.0, "length of the disturbed run")
    every_secs: float = flag("Runtime", number(above=True), 60.0, "mean time between two faults")
    faults: tuple[str, ...] = report.names_flag(
        "Runtime", tuple(_COLOURS), "kinds of faults (cut needs root and the program ss)"
    )
    seed: int = flag("Runtime", at_least(0), 1, "determines the faults and their moments")


@dataclasses.dataclass(frozen=True)
class _Fault:
    """A planned fault.

    Attributes:
      at: seconds since the start.
      kind: a key of _COLOURS.
      victim: a process; in a cut a worker.
      ps: index of the ps whose connections are cut or flooded.
      secs: how long it lasts, if it is a freeze or a flood.
    """

    at: float
    kind: str
    victim: str
    ps: int
    secs: float


@dataclasses.dataclass
class _Watch:
    """Observations of a disturbed run.

    Attributes:
      faults: kind, seconds since the start, the process, and what happened.
      memory: seconds, process, and megabytes.
      lines: the lines of all processes.
      processor_secs: time of all processes.
    """

    faults: list[tuple[str, float, str, str]] = dataclasses.field(default_factory=list)
    memory: list[tuple[float, str, float]] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)
    processor_secs: float = 0.0

    def hits(self, kind: str) -> list[tuple[float, str]]:
        """Returns the moment and the process of each fault of a kind that hit one."""
        return [
            (at, who) for each, at, who, what in self.faults if each == kind and what != _NOTHING
        ]


def main(options: _Options) -> None:
    """Injects faults into a training, compares it with an undisturbed one, and reports."""
    check_can_cut(options.faults)
    disturbed, calm = options.new_folders(("disturbed", "calm")).values()
    watch = _disturb(options, disturbed)
    if not (last := checkpoints.latest_checkpoint(disturbed)):
        raise ValueError(f"{disturbed}: the training wrote no checkpoint; see its lines above.")
    steps = checkpoints.step_of(last)
    print(f"{len(watch.faults)} faults, {steps} steps; now the same undisturbed", flush=True)
    _write(options, watch, {"steps": steps})
    program = "inception.mnist_distributed_train"
    subprocess.run(_command(options, program, calm, steps, restarts=0), check=True)
    compared = _compared(options, steps, (disturbed, calm))
    report.print_lines(_write(options, watch, compared))


def _write(options: _Options, watch: _Watch, others: dict[str, object]) -> dict[str, object]:
    """Writes what is known so far, since a run may be cut off; returns it."""
    conditions, figures = report.environment(), _observed(options, watch) | others
    if options.json:
        found = {"figures": figures, "faults": watch.faults, "memory_mb": watch.memory}
        report.write_json(options.json, {"environment": conditions} | found)
    if options.png:
        _draw(watch, options.png)
    return conditions | figures


def _command(options: _Options, program: str, folder: str, steps: int, restarts: int) -> list[str]:
    certs = options.certs_dir
    names = {"ca": "ca.crt", "cert": "127.0.0.1.crt", "key": "127.0.0.1.key"} if certs else {}
    return [
        *(sys.executable, "-u", "-m", "inception.launch", f"--max_restarts={restarts}"),
        *(f"--ps={options.ps}", str(options.workers), program),
        "--net=lenet",
        f"--data_dir={options.data_dir}",
        f"--train_dir={folder}",
        f"--batch_size={options.batch_size}",
        f"--max_steps={steps}",
        f"--worker_timeout_secs={options.worker_timeout_secs}",
        "--save_interval_secs=120",
        "--grad_bits=1",
        "--clip_factor=2.5",
        "--num_intra_threads=1",
        "--num_inter_threads=2",
        *(f"--tls_{flag}={os.path.join(certs, name)}" for flag, name in names.items()),
    ]


def _disturb(options: _Options, folder: str) -> _Watch:
    """Runs the training for `minutes` with faults."""
    watch = _Watch()
    launcher = subprocess.Popen(
        _command(options, "benchmarks.workers.paced_mnist", folder, _ENDLESS, _RESTARTS),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {paced_mnist.PAUSE_MS: str(options.pause_ms)},
    )
    reader = threading.Thread(target=_read, args=(launcher, watch), daemon=True)
    reader.start()
    try:
        _fault_by_fault(options, folder, watch, launcher)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(_END_SECS)
    finally:
        launcher.kill()
        launcher.wait()
        reader.join(_POLL_SECS)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    watch.processor_secs = used.ru_utime + used.ru_stime
    return watch


def _read(launcher: subprocess.Popen, watch: _Watch) -> None:
    for line in launcher.stdout:
        watch.lines.append(line.rstrip())
        if not _STEP.match(line):
            print(f"{time.strftime('%T')} {line}", end="", flush=True)


def _plan(options: _Options) -> list[_Fault]:
    """Returns the faults of the whole run; the seed alone determines them."""
    draw = random.Random(options.seed)
    workers = [str(i) for i in range(options.workers)]
    servers = [f"ps {i}" for i in range(options.ps)]
    victims = {
        "kill": [*workers[:-1], *servers],
        "freeze": [*workers, *servers],
        "cut": workers,
        "flood": servers,
    }
    longest = {"freeze": _LONGEST_FREEZE * options.worker_timeout_secs, "flood": _FLOOD_SECS}
    found: list[_Fault] = []
    at = options.every_secs
    while at < _MINUTE * options.minutes:
        # Each kind comes once before one comes again: also a short run has all.
        if len(found) % len(options.faults) == 0:
            order = draw.sample(options.faults, len(options.faults))
        kind = order[len(found) % len(options.faults)]
        victim = draw.choice(victims[kind])
        ps = int(victim.split()[-1]) if kind == "flood" else draw.randrange(options.ps)
        upper = math.log(max(_SHORTEST_SECS, longest.get(kind, 0)))
        secs = math.exp(draw.uniform(math.log(_SHORTEST_SECS), upper))
        found.append(_Fault(at, kind, victim, ps, secs))
        at += options.every_secs * draw.uniform(0.2, 1.8)
    return found


def _fault_by_fault(
    options: _Options, folder: str, watch: _Watch, launcher: subprocess.Popen
) -> None:
    """Injects the planned faults, until all workers have made steps after the last one."""
    _wait_for_steps(options, watch, launcher)
    start = time.monotonic()
    end = _MINUTE * options.minutes
    faults, running = _plan(options), []
    every = {"sample": max(_POLL_SECS, end / _SAMPLES), "write": _WRITE_SECS}
    due = dict.fromkeys(every, 0.0)
    while (now := time.monotonic() - start) < end or any(each.is_alive() for each in running):
        _check_runs(launcher)
        now_due = {what for what, moment in due.items() if now >= moment}
        due |= {what: now + every[what] for what in now_due}
        if "sample" in now_due:
            sizes = {who: resident_mb(process) for who, process in _members(folder).items()}
            watch.memory += [(round(now, 1), who, size) for who, size in sizes.items() if size]
        if "write" in now_due:
            _write(options, watch, {})
        while faults and faults[0].at <= now:
            each = threading.Thread(target=_do, args=(faults.pop(0), folder, watch, now))
            each.start()
            running.append(each)
        time.sleep(_POLL_SECS)
    # Also after a kill: the launcher restarts no process once it was asked to end.
    _wait_for_steps(options, watch, launcher)


def _check_runs(launcher: subprocess.Popen) -> None:
    if launcher.poll() is not None:
        raise ValueError("the training has ended early; see its lines above.")


def _wait_for_steps(options: _Options, watch: _Watch, launcher: subprocess.Popen) -> None:
    """Waits until each worker has made some more steps.

    Raises:
      ValueError: the training has ended, or goes on for too long without.
    """
    first, deadline = len(watch.lines), time.monotonic() + _END_SECS
    while time.monotonic() < deadline:
        _check_runs(launcher)
        seen = [found[1] for line in watch.lines[first:] if (found := _STEP.match(line))]
        if all(seen.count(str(i)) >= _STEPS_AFTER for i in range(options.workers)):
            return
        time.sleep(_POLL_SECS)
    raise ValueError(f"some worker made no {_STEPS_AFTER} steps in {_END_SECS:g} s.")


def _do(fault: _Fault, folder: str, watch: _Watch, at: float) -> None:
    """Injects a fault, and records it."""
    process = _members(folder).get(fault.victim)
    done = _ACTIONS[fault.kind](fault, process, folder, watch) if process else _NOTHING
    where = f"{fault.victim} to ps {fault.ps}" if fault.kind == "cut" else fault.victim
    watch.faults.append((fault.kind, round(at, 1), where, done))
    print(f"{time.strftime('%T')} --- {fault.kind} {where}: {done}", flush=True)


def _kill(fault: _Fault, process: int, folder: str, watch: _Watch) -> str:
    os.kill(process, signal.SIGKILL)
    return "killed"


def _freeze(fault: _Fault, process: int, folder: str, watch: _Watch) -> str:
    os.kill(process, signal.SIGSTOP)
    time.sleep(fault.secs)
    if _members(folder).get(fault.victim) != process:
        return "killed meanwhile"
    os.kill(process, signal.SIGCONT)
    return f"{fault.secs:.1f} s"


def _cut(fault: _Fault, process: int, folder: str, watch: _Watch) -> str:
    """Resets the connections of a worker with a ps."""
    count = cut_connections(process, _port(fault.ps, watch))
    return f"{count} connections" if count else _NOTHING


def _flood(fault: _Fault, process: int, folder: str, watch: _Watch) -> str:
    """Opens idle connections from another host, as fast as possible, and holds them for a time."""
    with contextlib.ExitStack() as stack:
        opened, end = 0, time.monotonic() + fault.secs
        for _ in range(_FLOOD_CONNECTIONS):
            if time.monotonic() > end:
                break
            each = stack.enter_context(socket.socket())
            each.settimeout(_POLL_SECS)
            each.bind((_UNKNOWN_CALLER, 0))
            with contextlib.suppress(OSError):  # refused, or the ps is away
                each.connect(("127.0.0.1", _port(fault.ps, watch)))
                opened += 1
        time.sleep(max(0.0, end - time.monotonic()))
    return f"{opened} connections, {fault.secs:.1f} s" if opened else _NOTHING


_ACTIONS: dict[str, Callable[[_Fault, int, str, _Watch], str]] = {
    "kill": _kill,
    "freeze": _freeze,
    "cut": _cut,
    "flood": _flood,
}


def _port(ps: int, watch: _Watch) -> int:
    """Returns the port of a ps, from the first line that names them."""
    line = next(line for line in watch.lines if "PS hosts are" in line)
    return int(re.findall(r":(\d+)'", line)[ps])


def _members(train_dir: str) -> dict[str, int]:
    """Returns the ids of a training's processes by name: "0", "1", "ps 0"."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            pairs = (word[2:].partition("=") for word in words if word.startswith("--"))
            flags = {name: value for name, _, value in pairs}
            if flags.get("train_dir") == train_dir and "task_id" in flags:
                job = "ps " if flags.get("job_name") == "ps" else ""
                found[f"{job}{flags['task_id']}"] = int(process.name)
    return found


def _observed(options: _Options, watch: _Watch) -> dict[str, object]:
    """Returns the figures of the disturbed run."""
    hits = {kind: [who for _, who in watch.hits(kind)] for kind in options.faults}
    wall = _MINUTE * options.minutes * (os.cpu_count() or 1)
    names = sorted({who for _, who, _ in watch.memory})
    return {
        "minutes": options.minutes,
        "faults": {kind: len(found) for kind, found in hits.items()},
        "victims": {kind: dict(collections.Counter(sorted(found))) for kind, found in hits.items()},
        "processor time, of the machine": round(watch.processor_secs / wall, 3),
        **_steps_lost(options, watch.lines),
        "memory by quarter, MB": {name: _quarters(watch, name) for name in names},
        "worker that was never killed": str(options.workers - 1),
    }


def _steps_lost(options: _Options, lines: Sequence[str]) -> dict[str, object]:
    """Returns the lost steps, from the log lines.

    A worker that survives a fault logs the steps that it repeats a second time. One that is absent
    while the others finish a step never logs it: it receives the state after that step.
    """
    last = dict.fromkeys((str(i) for i in range(options.workers)), 0)
    lasting = str(options.workers - 1)
    anew = skipped = received = 0
    losses = []  # of each view
    for line in lines:
        if found := _STEP.match(line):
            worker, step = found[1], int(found[2])
            anew += step <= last[worker]
            skipped += worker == lasting and step > max(last[worker], received) + 1
            last[worker] = max(last[worker], step)
        elif found := _VIEW.match(line):
            if lasting in re.findall(r"\d+", found[2] or ""):
                received = int(found[1])
            losses.append(max(last.values()) - int(found[1]))
    return {
        "views": len(losses),
        "largest number of finished steps that a view went back": max(losses, default=None),
        "finished steps that a worker made again": anew,
        "steps that the worker that was never killed left out": skipped,
    }


def _quarters(watch: _Watch, name: str) -> list[float]:
    """Returns a process' mean memory in each quarter of the run."""
    return report.quarters([megabytes for _, who, megabytes in watch.memory if who == name])


def _compared(options: _Options, steps: int, folders: Sequence[str]) -> dict[str, object]:
    """Returns how the results of both runs differ."""
    last = [checkpoints.latest_checkpoint(folder) for folder in folders]
    disturbed, calm = map(_weights, last)
    differing = [name for name in calm if not np.array_equal(calm[name], disturbed[name])]
    found = measure_checkpoints(last, net="lenet", dataset_name="mnist", data_dir=options.data_dir)
    names = map(os.path.basename, folders)
    return {
        "steps": steps,
        "variables that were compared": len(calm),
        "variables that differ from the undisturbed run": len(differing),
        "precision @ 1": {n: each.precision_at_1 for n, each in zip(names, found, strict=True)},
    }


def _weights(checkpoint: str) -> dict[str, np.ndarray]:
    with checkpoints.opened(checkpoint) as reader:
        names = [n for n in reader.get_variable_to_shape_map() if _KEPT.search(n)]
        return {name: reader.get_tensor(name) for name in names}


def _draw(watch: _Watch, path: str) -> None:
    with report.picture(path, width=9.0) as (axes,):
        for name in sorted({who for _, who, _ in watch.memory}):
            points = [(at / _MINUTE, size) for at, who, size in watch.memory if who == name]
            axes.plot(*zip(*points, strict=True), ".", markersize=2, label=name)
        for kind, colour in _COLOURS.items():
            if times := [at / _MINUTE for at, _ in watch.hits(kind)]:
                axes.vlines(times, 0, 40, color=colour, linewidth=1, label=f"{kind} ({len(times)})")
        axes.set(xlabel="minutes", ylabel="resident memory, MB", ylim=0)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


if __name__ == "__main__":
    report.run(main, _Options)
