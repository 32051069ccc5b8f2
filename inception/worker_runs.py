"""Trainings of several workers, as the tests start and watch them."""

import contextlib
import importlib.util
import os
import re
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


class Run:
    """A training that was launched here; a time-out shows its lines."""

    def __init__(self, workers, program, flags, options=()):
        command = [sys.executable, "-u", "-m", "inception.launch", *options, str(workers)]
        self.start([*command, program, *flags])

    def start(self, command):
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
        """The exit status."""
        try:
            status = self.process.wait(TIMEOUT_SECS)
            self.reader.join(10)
            return status
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail("still running:\n" + "\n".join(self.lines))

    def end(self):
        self.process.kill()
        self.process.wait()


class HorovodRun(Run):
    """The same, of workers that Horovod joins."""

    def __init__(self, command, program, flags, module=("-m",)):
        # horovodrun takes --net for one of its own, and looks for these everywhere.
        flags = [re.sub("^--net=", "-net=", flag) for flag in flags]
        self.start([*command, *module, program, "--variable_update=horovod", *flags])

    def end(self):
        self.process.terminate()  # the launcher then ends what it started
        self.process.wait()


class MpiRun(Run):
    """A training that mpirun started."""

    def __init__(self, workers, program, flags):
        mpirun = os.path.join(os.path.dirname(sys.executable), "mpirun")
        if importlib.util.find_spec("mpi4py") is None or not os.path.exists(mpirun):
            pytest.skip("mpi4py and mpich are not installed: pip install '.[mpi]'")
        command = [mpirun, "-np", str(workers), sys.executable, "-u", "-m", program]
        self.start([*command, "--variable_update=mpi", *flags])

    def end(self):
        self.process.terminate()  # it then ends what it started
        self.process.wait()


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
    """A run of each process of a cluster; those that still run are killed at the end."""
    runs = []
    try:
        for member in members:
            runs.append(Run.__new__(Run))
            runs[-1].start([sys.executable, "-u", "-m", program, *flags, *member.flags])
        yield runs
    finally:
        for run in runs:
            run.end()
