"""Runs one trial: a training, and the evaluation of its checkpoints. Loads no TensorFlow.

A sweep starts this module, here or on another machine, and talks with it; see `messages`. What the
programs print goes to train.log and eval.log in the trial's folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from inception.sweeping import messages
from inception.sweeping.messages import Evaluation, Outcome, TrialEnd, TrialSpec
from terngrad.files import publish
from terngrad.launcher import gpus, hosts, state

_STEP = re.compile(r"^Succesfully loaded model from .* at step=(\d+)\.$")
_METRICS = re.compile(r"precision @ 1 = ([\d.]+) recall @ 5 = ([\d.]+) ")
_BYTES_MEASURED = re.compile(r"(?:Sent|Pushed) (\d+) bytes a step")
_BYTES_EXPECTED = re.compile(r"(?: sends| pushes)(?: at most)? (\d+) bytes a step")
_COMMAND = "command"  # file of a trial's folder: its training, without the name of the folder
_SECONDS = "seconds"  # file of a trial's folder: time of training so far, over all attempts
_NOTE_SECS = 5.0  # until that file is written again


def run(spec: TrialSpec, stop: threading.Event, report: Callable[[Evaluation], None]) -> TrialEnd:
    """Runs a trial to its end, or until `stop` is set; reports each evaluation."""
    folder = Path(spec.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an earlier attempt may still be saving
        if other := _other_training(spec, folder / _COMMAND):
            reason = f"{folder} holds another training ({other}); choose another --sweep_dir"
            return TrialEnd(Outcome.FAILED, reason)
        return _Attempt(spec, lock, stop, report).run()


def _other_training(spec: TrialSpec, file: Path) -> str:
    """Returns the training that a trial's folder is of, if it is another one; else notes this one.

    A study that was made anew gives its trials the folders of the former one's. Folders from before
    2026-11-30 have no such file.
    """
    command = shlex.join(word for word in spec.train if not word.startswith("--train_dir="))
    if file.exists():
        known = file.read_text().strip()
        return known if known != command else ""
    written = file.with_suffix(".partial")
    written.write_text(f"{command}\n")
    written.replace(file)
    return ""


class _Attempt:
    """One attempt to finish a trial."""

    def __init__(
        self,
        spec: TrialSpec,
        lock: IO[str],
        stop: threading.Event,
        report: Callable[[Evaluation], None],
    ) -> None:
        self._spec, self._lock, self._stop, self._report = spec, lock, stop, report
        self._folder = Path(spec.folder)
        self._environment = os.environ | gpus.variables(gpus.found(), spec.slot, spec.slots)
        self._last: Evaluation | None = None
        self._begin, self._seconds_before = time.monotonic(), self._noted_seconds()

    def run(self) -> TrialEnd:
        self._note_seconds()
        with contextlib.ExitStack() as stack:
            if self._spec.follow:
                evaluator = stack.enter_context(self._evaluating())
            problem = self._train()
            seconds = self._note_seconds()
            if not problem and not self._spec.follow:
                evaluator = stack.enter_context(self._evaluating())
            if not problem:
                problem = self._wait(*evaluator)
        outcome, reason = problem or (Outcome.DONE, "")
        return TrialEnd(outcome, reason, seconds, self._bytes_sent(), self._last)

    def _train(self) -> tuple[Outcome, str] | None:
        with (self._folder / "train.log").open("a") as log:
            return self._wait(self._start(self._spec.train, log), None, self._note_seconds)

    def _start(self, command: Sequence[str], output: IO[str] | int) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=self._environment,
            pass_fds=[self._lock.fileno()],  # the lock is held as long as a program lives
        )

    def _wait(
        self,
        process: subprocess.Popen,
        reader: threading.Thread | None,
        note: Callable[[], object] = lambda: None,
    ) -> tuple[Outcome, str] | None:
        """Waits for a program's end, also after having stopped it; returns what went wrong.

        Args:
          process: the training, or the evaluation.
          reader: what reads the evaluation's output.
          note: called every few seconds.
        """
        noted_at = time.monotonic()
        while process.poll() is None and not self._stop.wait(0.1):
            if time.monotonic() - noted_at >= _NOTE_SECS:
                note()
                noted_at = time.monotonic()
        if process.poll() is None:
            process.terminate()
        code = process.wait()
        if self._stop.is_set():
            return Outcome.STOPPED, ""
        if code == 0:
            return None
        status = state.exit_status(code)
        if status > 128:
            how = state.signal_name(status) or f"status {status}"
            return Outcome.DIED, f"{process.args[3]} was ended by {how}"
        if reader:
            reader.join()
        log = self._folder / ("eval.log" if reader else "train.log")
        return Outcome.FAILED, hosts.last_line(log.read_text(errors="replace"), "no output")

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[tuple[subprocess.Popen, threading.Thread]]:
        """Starts the evaluation and what reads its output; ends it with the block."""
        process = self._start(self._spec.evaluate, subprocess.PIPE)
        reader = threading.Thread(target=self._read, args=(process.stdout,))
        reader.start()
        try:
            yield process, reader
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
            reader.join()

    def _read(self, lines: IO[str]) -> None:
        step = 0
        with (self._folder / "eval.log").open("ab", buffering=0) as log:
            for line in lines:
                with contextlib.suppress(OSError):  # a full disk is no end of a trial
                    log.write(line.encode())
                if match := _STEP.match(line):
                    step = int(match[1])
                elif match := _METRICS.search(line):
                    self._last = Evaluation(step, float(match[1]), float(match[2]))
                    self._report(self._last)

    def _noted_seconds(self) -> float:
        """Returns the time that earlier attempts trained.

        A training outlives the process of a killed attempt, up to the last line of its log.
        """
        file, seconds = self._folder / _SECONDS, 0.0
        with contextlib.suppress(FileNotFoundError, ValueError):
            seconds = float(file.read_text())
            log = self._folder / "train.log"
            seconds += max(0.0, log.stat().st_mtime - file.stat().st_mtime)
        return seconds

    def _note_seconds(self) -> float:
        """Writes and returns the time of training so far; the next attempt adds to it."""
        seconds = self._seconds_before + time.monotonic() - self._begin
        written = self._folder / f"{_SECONDS}.partial"
        with contextlib.suppress(OSError):  # a full disk is no end of a trial
            written.write_text(f"{seconds:.3f}\n")
            publish(str(written), str(self._folder / _SECONDS))
        return seconds

    def _bytes_sent(self) -> int | None:
        """Returns the bytes that the training measured last; if it never did, those it expected.

        An attempt that has no step left, because the training has ended, only says what it expects.
        """
        log = (self._folder / "train.log").read_text(errors="replace")
        found = _BYTES_MEASURED.findall(log) or _BYTES_EXPECTED.findall(log)
        return int(found[-1]) if found else None


def main() -> None:
    """Runs the trial whose specification is on stdin."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's signals reach the sweep
        signal.signal(number, signal.SIG_IGN)
    line = sys.stdin.readline()
    if not line:
        return
    spec, stop = messages.read_spec(line), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    os.sched_setaffinity(0, gpus.share(sorted(os.sched_getaffinity(0)), spec.slot, spec.slots))

    def listen() -> None:
        sys.stdin.readline()  # "stop", or nothing at the end
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    end = run(spec, stop, _print_event)
    _print_event(end)
    os._exit(0)  # the thread may still wait for the sweep


def _print_event(event: Evaluation | TrialEnd) -> None:
    with contextlib.suppress(BrokenPipeError):  # the sweep has ended; the training saves
        sys.stdout.write(messages.write(event))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
