"""Are gradients on a GPU coded as on CPUs, and how fast?

It needs a GPU with its driver, NVRTC, NumPy, PyTorch or CuPy, and the library for arrays:
`python -m terngrad.ops.build --arrays` builds it. It takes less than 3 minutes, the kernels'
compilation at the first time included.

First, all laws of the kernels are checked with fresh random values. Then each kernel is timed with
the gradients of two nets, with events on the stream, beside a copy of the gradients on the GPU and
what PyTorch offers: the median of several rounds, in which caches are cold and launches wait in a
queue. The exit status is 1 if a law does not hold, or nothing could be checked.

python -m benchmarks.gpu_check --json=figures.json
compute-sanitizer --tool memcheck python -m benchmarks.gpu_check --rounds=0   # or racecheck
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu import backends, laws, timings
from benchmarks.gpu.backends import Backend, NoGpuError
from benchmarks.gpu.laws import Finding
from benchmarks.gpu.options import environment, parser, write_figures
from benchmarks.gpu.timings import Timing
from terngrad.gpu import device
from terngrad.ops.library import UnavailableError


class Goal(NamedTuple):
    """An upper limit of a measured time, meant for an H100.

    Attributes:
      text: what is compared.
      value: what was measured.
      limit: most that meets the goal.
    """

    text: str
    value: float
    limit: float

    @property
    def is_met(self) -> bool:
        """Whether the goal is met."""
        return self.value <= self.limit


def main(arguments: Sequence[str] | None = None, backend: Backend | None = None) -> None:
    """Checks and measures; exits with a line if there is no GPU, or a law does not hold."""
    options = parser("gpu_check", __doc__).parse_args(arguments)
    start = time.perf_counter()
    try:
        backend = backend or backends.find()
        device.device(0)
    except (NoGpuError, UnavailableError) as error:
        sys.exit(f"gpu_check: {error}")
    opened = time.perf_counter() - start
    conditions = environment(backend.describe()) | {
        "arrays": backend.name,
        "seed": options.seed,
        "seconds to open": round(opened, 2),
    }
    for name, value in conditions.items():
        print(f"- {name}: {value}")
    findings = list(laws.check(backend, options.seed))
    laws.print_findings(findings)
    measured: list[Timing] = []
    if options.rounds:
        for net, shapes in timings.NETS.items():
            measured += timings.measure(backend, net, shapes, options.rounds, options.seed)
    _print_timings(measured)
    goals = _goals_of(measured)
    for goal in goals:
        result = "met" if goal.is_met else "missed"
        print(f"- goal {result}: {goal.text}: {goal.value:.2f}, at most {goal.limit:g}")
    print(f"- seconds in all: {time.perf_counter() - start:.1f}")
    if options.json:
        _write(options.json, conditions, findings, measured, goals)
    if wrong := sum(finding.wrong for finding in findings):
        sys.exit(f"gpu_check: {wrong} values are not what they must be")


def _goals_of(measured: Iterable[Timing]) -> list[Goal]:
    """Returns the goals, if AlexNet was timed."""
    seconds = {timing.task: timing.seconds for timing in measured if timing.net == "AlexNet"}
    if not seconds:
        return []
    once = seconds["copy"] / 2  # a copy reads and writes
    both = seconds["stats"] + seconds["encode"]
    return [
        Goal("statistics and encode, as a multiple of one read at copy speed", both / once, 2.0),
        Goal("decode, as a multiple of one write at copy speed", seconds["decode"] / once, 1.2),
        Goal("milliseconds to encode AlexNet", 1000 * seconds["encode"], 0.25),
    ]


def _print_timings(measured: Sequence[Timing]) -> None:
    copies = {timing.net: timing.rate for timing in measured if timing.task == "copy"}
    rows = [("net", "task", "ms", "GB/s", "of a copy's")]
    for each in measured:
        share = f"{each.rate / copies[each.net]:.2f}" if each.octets else ""
        rate = f"{each.rate / 1e9:.0f}" if each.octets else ""
        rows.append((each.net, each.task, f"{1000 * each.seconds:.3f}", rate, share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for i, row in enumerate(rows if measured else []):
        texts = [cell.ljust(n) for cell, n in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(n) for cell, n in zip(row[2:], widths[2:], strict=True)]
        print(f"| {' | '.join([*texts, *numbers])} |")
        if i == 0:
            print("|" + "|".join("-" * (n + 2) for n in widths) + "|")


def _write(
    path: str,
    conditions: Mapping[str, object],
    findings: Iterable[Finding],
    measured: Iterable[Timing],
    goals: Iterable[Goal],
) -> None:
    content = {
        "environment": conditions,
        "laws": [finding._asdict() for finding in findings],
        "timings": [timing._asdict() for timing in measured],
        "goals": [goal._asdict() | {"is_met": goal.is_met} for goal in goals],
    }
    write_figures("gpu_check", path, content)


if __name__ == "__main__":
    main()
