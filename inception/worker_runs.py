"""Trainings of several workers, as the tests start and watch them."""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

TIMEOUT_SECS = 280
STEPS = 20


def flags_of(folder, net="lenet", batch_size=8, nodes=1, bits=1, steps=STEPS, summary_secs=0):
    dataset = {"lenet": "mnist", "cifar10_alexnet": "cifar10"}[net]
    program = f"inception.{dataset}_distributed_train"
    return program, [
        f"--net={net}",
        f"--train_dir={folder}",
        f"--batch_size={batch_size}",
        f"--num_nodes={nodes}",
        f"--grad_bits={bits}",
        f"--max_steps={steps}",
        "--clip_factor=2.5",
        "--benchmark_mode=True",
        "--num_intra_threads=1",
        "--num_inter_threads=2",
        f"--save_summaries_secs={summary_secs}",
    ]


class Started(contextlib.AbstractContextManager):
    """A program that was started here, and that ends with its `with` block at the latest.

    Attributes:
      process: the program.
      lines: what it and all that it started said until now; a time-out shows them.
      reader: the thread that reads them.
    """

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, pattern):
        deadline = time.monotonic() + TIMEOUT_SECS
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            if self.process.poll() is not None and not self.reader.is_alive():
                break
            time.sleep(0.05)
        self.end()
        pytest.fail(f"no line {pattern!r} in\n" + "\n".join(self.lines))

    def finish(self):
        """Waits for the program; returns its exit status."""
        try:
            status = self.process.wait(TIMEOUT_SECS)
            self.reader.join(10)
            return status
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail("still running:\n" + "\n".join(self.lines))

    def end(self):
        """Kills the program, if it still runs, and all that it started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # it starts no more
            for process in [*descendants(self.process.pid), self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.process.wait()
        self.reader.join(10)

    def __exit__(self, *exception):
        self.end()


class Run(Started):
    """A training on several workers of this machine, started by inception.launch."""

    def __init__(self, workers, program, flags, options=()):
        command = [sys.executable, "-u", "-m", "inception.launch", *options, str(workers)]
        super().__init__([*command, program, *flags])


class HorovodRun(Started):
    """The same, of workers that Horovod joins."""

    def __init__(self, command, program, flags, module=("-m",)):
        # horovodrun takes --net for one of its own, and looks for these everywhere.
        flags = [re.sub("^--net=", "-net=", flag) for flag in flags]
        super().__init__([*command, *module, program, "--variable_update=horovod", *flags])


class MpiRun(Started):
    """A training that mpirun started."""

    def __init__(self, workers, program, flags):
        mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
        if importlib.util.find_spec("mpi4py") is None or not os.path.exists(mpirun):
            pytest.skip("mpi4py and mpich are not installed: pip install '.[mpi]'")
        command = [mpirun, "-np", str(workers), sys.executable, "-u", "-m", program]
        super().__init__([*command, "--variable_update=mpi", *flags])


def descendants(process):
    """Ids of the processes that a process started, that those started, and so on."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(after_name[1])
    found, generation = [], {process}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found += generation
    return found


def worker_pids(folder, job="worker"):
    """Processes of the workers that train in a folder, or of their ps, by index."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            told = b"\0".join(words) + (process / "environ").read_bytes()
            index = re.search(rb"(?:--task_id|PMI_RANK|HOROVOD_RANK|COMM_WORLD_RANK)=(\d+)", told)
            is_ps = b"--job_name=ps" in words
            if index and is_ps == (job == "ps") and f"--train_dir={folder}".encode() in words:
                found[int(index[1])] = int(process.name)
    return found


def finished(commands):
    """Output and status of processes that run together."""
    processes = [
        subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for c in commands
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(output, p.returncode) for output, p in zip(outputs, processes, strict=True)]


@contextlib.contextmanager
def processes(program, flags, members):
    """Each process of a cluster as a program of its own, until the block ends."""
    with contextlib.ExitStack() as stack:
        commands = [[sys.executable, "-u", "-m", program, *flags, *m.flags] for m in members]
        yield [stack.enter_context(Started(command)) for command in commands]
