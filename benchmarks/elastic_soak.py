"""Do workers that come and go always have equal weights?

Trains on this machine with workers that may join and leave. At random moments a worker is killed,
the first healthy one is killed (which mostly coordinates), one is asked to end, stopped for a time,
or loses all its connections. A worker that has ended starts again after a time. After each
step each worker prints a checksum of its weights and momentum. The last worker is stopped and cut,
but never ended, so that its memory shows leaks.

python -m benchmarks.elastic_soak --minutes=120 --every_secs=20 --json=figures.json
"""

import collections
import contextlib
import dataclasses
import random
import signal
import statistics
import time
from collections.abc import Sequence

from benchmarks import report
from benchmarks.fault_benchmark import ENGINES, Training, TrainingOptions
from benchmarks.workers.processes import Process, check_can_cut, cut_connections, resident_mb
from inception.flags.table import at_least, flag, number, one_of

_FAULTS = ("kill", "kill_first", "end", "stop", "cut")
_POLL_SECS = 0.5
_LONGEST_STOP = 1.5  # time-outs
_LONGEST_ABSENCE_SECS = 15.0  # of a worker that has ended
_SOON_SECS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(TrainingOptions):
    engine: str = flag(
        "Distributed",
        one_of("all_reduce_elastic", "parameter_servers_elastic"),
        "all_reduce_elastic",
        "how gradients are exchanged",
    )
    faults: tuple[str, ...] = report.names_flag(
        "Runtime", _FAULTS, "kinds of faults (cut needs root and the program ss)"
    )
    minutes: float = flag("Runtime", number(above=True), 30.0, "length of the run")
    every_secs: float = flag("Runtime", number(above=True), 20.0, "mean time between two faults")
    seed: int = flag("Runtime", at_least(0), 1, "determines the faults and their moments")


class _Soak:
    """A training with injected faults, and its observations."""

    def __init__(self, options: _Options, training: Training) -> None:
        self._options, self._training = options, training
        self._draw = random.Random(options.seed)
        self._absent: dict[str, float] = {}  # when a worker starts again, or goes on
        self._ends: set[str] = set()  # workers that were asked to end
        self._disturbed: dict[str, float] = {}  # when a worker was last cut, or came back
        self._ended: list[Process] = []  # processes, of which others took the place
        self.faults: collections.Counter[str] = collections.Counter()
        self._hits: list[tuple[str, float, list[Process]]] = []  # kind, moment, who was well
        self.memory: list[float] = []  # MB, of the last worker
        self.ended_alone = 0  # processes that ended without a fault that ends one

    def run(self) -> None:
        """Injects faults for the given time, then lets all workers join again."""
        self._training.wait_for_steps(self._training.workers())
        begin = time.monotonic()
        end, due = begin + 60 * self._options.minutes, begin
        while (now := time.monotonic()) < end:
            self._bring_back(now)
            self._sample()
            if now >= due:
                due = now + self._options.every_secs * self._draw.uniform(0.2, 1.8)
                self._do(self._draw.choice(self._options.faults), now)
            time.sleep(_POLL_SECS)
        while self._absent:
            self._bring_back(time.monotonic())
            time.sleep(_POLL_SECS)
        self._training.wait_for_steps(self._training.workers())

    def waits(self) -> dict[str, list[float]]:
        """Returns the longest wait of the others for each fault, by kind.

        It is a time between two steps that contains the fault or begins soon after it.
        """
        found = collections.defaultdict(list)
        for kind, at, others in self._hits:
            waits = [each.waits(at, at + _SOON_SECS) for each in others]
            found[kind].append(max((secs for each in waits for secs in each), default=0.0))
        return found

    def checksums(self) -> list[list[tuple[int, str]]]:
        """Returns the steps and checksums of each process that there was."""
        all_of_them = (*self._ended, *self._training.processes.values())
        return [list(each.checksums) for each in all_of_them]  # running ones add more

    def _well(self) -> list[str]:
        """Returns the workers that train; a restarted one must have made a step."""
        workers = {k: v for k, v in self._training.processes.items() if k.startswith("worker")}
        return [
            name
            for name, process in workers.items()
            if name not in self._absent and process.steps_after(self._disturbed.get(name, 0.0))
        ]

    def _do(self, kind: str, now: float) -> None:
        """Injects a fault, if two workers are healthy, so that one is left."""
        well, options = self._well(), self._options
        lasting = f"worker {options.workers - 1}"
        may_end = [name for name in well if name != lasting]
        victims = {"kill_first": may_end[:1], "stop": well, "cut": well}.get(kind, may_end)
        if len(well) < 2 or not victims:
            return
        victim = self._draw.choice(victims)
        others = [self._training.processes[name] for name in well if name != victim]
        process = self._training.processes[victim]
        if kind == "stop":
            process.send(signal.SIGSTOP)
            longest_secs = _LONGEST_STOP * options.timeout_secs
            self._absent[victim] = now + self._draw.uniform(1, longest_secs)
        elif kind == "cut":
            if not cut_connections(process.pid):
                return
            self._disturbed[victim] = time.monotonic()
        else:
            process.send(signal.SIGTERM if kind == "end" else signal.SIGKILL)
            self._ends |= {victim} if kind == "end" else set()
            self._absent[victim] = now + self._draw.uniform(1, _LONGEST_ABSENCE_SECS)
        self.faults[kind] += 1
        print(f"{time.strftime('%T')} {kind} {victim}", flush=True)
        self._hits.append((kind, time.monotonic(), others))

    def _bring_back(self, now: float) -> None:
        for name, process in list(self._training.processes.items()):
            if name not in self._absent and not process.is_running():
                self.ended_alone += 1
                print(f"{name} has ended: {''.join(process.lines[-3:])}", flush=True)
                self._replace(name)
        for name in [name for name, moment in self._absent.items() if moment <= now]:
            process = self._training.processes[name]
            if name in self._ends:
                self._training.wait_for(f"end of {name}", lambda own=process: not own.is_running())
            self._ends.discard(name)
            del self._absent[name]
            if process.is_running():
                self._disturbed[name] = time.monotonic()
                process.send(signal.SIGCONT)
            else:
                self._replace(name)

    def _replace(self, name: str) -> None:
        self._ended.append(self._training.processes[name])
        self._disturbed[name] = time.monotonic()
        self._training.start_again(name)

    def _sample(self) -> None:
        last = self._training.processes[f"worker {self._options.workers - 1}"]
        if size := resident_mb(last.pid):
            self.memory.append(size)


def differences(found: Sequence[Sequence[tuple[int, str]]]) -> dict[str, int]:
    """Counts violations in the steps and checksums of all processes."""
    by_step: dict[int, set[str]] = collections.defaultdict(set)
    again = 0
    for steps in found:
        again += len(steps) - len({step for step, _ in steps})
        for step, checksum in steps:
            by_step[step].add(checksum)
    return {
        "steps": max(by_step, default=0),
        "steps after which two workers differed": sum(len(each) > 1 for each in by_step.values()),
        "steps that a process made twice": again,
    }


def main(options: _Options) -> None:
    """Injects faults into a training, and prints the observations."""
    check_can_cut(options.faults)
    engine = ENGINES[options.engine]
    with contextlib.closing(Training(options, engine, more=["checksums"])) as training:
        soak = _Soak(options, training)
        soak.run()
        figures: dict[str, object] = {
            "faults": dict(soak.faults),
            **differences(soak.checksums()),
            "workers that ended by themselves": soak.ended_alone,
            "longest wait of the others, s (median, largest)": {
                kind: (round(statistics.median(secs), 2), round(max(secs), 2))
                for kind, secs in sorted(soak.waits().items())
            },
            "memory of the last worker by quarter, MB": report.quarters(soak.memory),
        }
    report.print_lines(figures)
    report.conclude(options, figures)


if __name__ == "__main__":
    report.run(main, _Options)
