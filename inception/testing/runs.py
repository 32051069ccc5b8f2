"""Short trainings that tests start, and their results."""

import contextlib
import dataclasses
import os
import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow as tf

from terngrad.connect.certificates import Tls
from terngrad.testing import forked
from terngrad.testing.processes import Started, mpirun
from terngrad.training import checkpoints

Parameters = Mapping[str, np.ndarray]

STEPS = 20
LONGER = 150  # steps; more than a run makes before a test has killed a process
ENDLESS = 100_000  # steps
# Flags of a small training on random images.
SMALL = {
    "net": "mlp",
    "benchmark_mode": True,
    "batch_size": 8,
    "num_nodes": 2,
    "num_intra_threads": 1,
    "save_summaries_secs": 0,
}
_DATASETS = {"lenet": "mnist", "mlp": "mnist", "cifar10_alexnet": "cifar10"}
_INDEX = re.compile(rb"(?:--task_id|PMI_RANK|HOROVOD_RANK|COMM_WORLD_RANK)=(\d+)")


def flags_of(
    folder: Path,
    net: str = "lenet",
    batch_size: int = 8,
    nodes: int = 1,
    bits: int = 1,
    steps: int = STEPS,
    summary_secs: float = 0,
) -> tuple[str, list[str]]:
    """Returns the program and the flags of a training on random images.

    Args:
      folder: folder for its checkpoints.
      net: name of the net.
      batch_size: images per worker and step.
      nodes: nodes of each worker.
      bits: --grad_bits.
      steps: steps of the run.
      summary_secs: seconds between summaries; 0 = none.
    """
    program = f"inception.{_DATASETS[net]}_distributed_train"
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


def as_flags(settings: Mapping[str, object]) -> list[str]:
    """Returns the flags that make settings."""
    return [f"--{name}={value}" for name, value in settings.items()]


def paced_flags_of(folder: Path, *more: str, **settings: object) -> tuple[str, list[str]]:
    """Returns program and flags of a slow training of a small net.

    Args:
      folder: folder for its checkpoints.
      more: additional flags.
      settings: arguments of `flags_of`; without `steps` the training does not end.
    """
    defaults = {"net": "mlp", "batch_size": 2, "steps": ENDLESS}
    _, flags = flags_of(folder, **defaults | settings)
    return "inception.testing.paced_train", [*flags, *more]


def tls_flags(tls: Tls) -> list[str]:
    """Returns the flags that name a process' certificates."""
    return [f"--tls_{name}={path}" for name, path in dataclasses.asdict(tls).items() if path]


class Run(Started):
    """A training that inception.launch starts on this machine."""

    def __init__(
        self, workers: int, program: str, flags: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        """Starts the workers; `options` are the launcher's own flags."""
        command = [
            sys.executable,
            "-u",
            "-m",
            "inception.testing.forked_launch",
            *options,
            str(workers),
        ]
        super().__init__([*command, program, *flags])


class HorovodRun(Started):
    """A training whose workers Horovod connects."""

    def __init__(self, command: Sequence[str], program: str, flags: Sequence[str]) -> None:
        """Starts it with the command of the fixture `horovod_command`."""
        # horovodrun would read --net as an abbreviation of one of its own flags.
        flags = [re.sub("^--net=", "-net=", flag) for flag in flags]
        super().__init__([*command, "-m", program, "--variable_update=horovod", *flags])


class MpiRun(Started):
    """A training that mpirun starts; skips the test where MPI is not installed."""

    def __init__(self, workers: int, program: str, flags: Sequence[str]) -> None:
        """Starts the workers."""
        super().__init__([*mpirun(workers), "-m", program, "--variable_update=mpi", *flags])


def commands_of(
    program: str, flags: Sequence[str], members: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Returns a command for each process of a cluster, given the flags of each."""
    return [[sys.executable, "-u", "-m", program, *flags, *own] for own in members]


def worker_pids(folder: Path, job: str = "worker") -> dict[int, int]:
    """Returns the process ids of the workers (or ps) that train in a folder, by index."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").split(b" ")
            index = _INDEX.search(b"\0".join(words) + (process / "environ").read_bytes())
            is_ps = b"--job_name=ps" in words
            if index and is_ps == (job == "ps") and f"--train_dir={folder}".encode() in words:
                found[int(index[1])] = int(process.name)
    return found


def train(workers: int, folder: Path, **settings: object) -> Parameters:
    """Trains to the end with this many workers; returns the parameters. See `flags_of`."""
    with Run(workers, *flags_of(folder, **settings)) as run:
        run.succeed()
    return parameters(folder, settings.get("steps", STEPS))


def parameters(folder: Path, step: int = STEPS) -> Parameters:
    """Reads the variables and their moving averages from a step's checkpoint, by name."""
    reader = tf.train.load_checkpoint(os.path.join(str(folder), f"model.ckpt-{step}"))
    names = [n for n in reader.get_variable_to_shape_map() if "variables" in n or "averages" in n]
    return {name: reader.get_tensor(name) for name in sorted(names)}


def newest_state(folder: Path) -> Parameters:
    """Reads what a training, or a worker of it, goes on with from its newest checkpoint."""
    reader = tf.train.load_checkpoint(checkpoints.latest_checkpoint(str(folder)))
    names = [name for name in reader.get_variable_to_shape_map() if name.startswith("state/")]
    return {name: reader.get_tensor(name) for name in names}


def assert_equal_parameters(
    left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]
) -> None:
    """Asserts that the parameters of two trainings are bit for bit equal."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def refusal(*flags: str, **environment: str) -> str:
    """Starts a program that must end with one line on stderr; returns that line.

    Args:
      flags: flags of the program.
      environment: additional environment variables.
    """
    done = forked.run(
        [sys.executable, "-m", "inception.mnist_distributed_train", *flags],
        env=os.environ | environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def run_program(module: str, *arguments: object) -> None:
    """Runs a program with arguments, as `python -m` does; SystemExit has the line of an error."""
    with mock.patch.object(sys, "argv", [module.rpartition(".")[2], *map(str, arguments)]):
        runpy.run_module(module, run_name="__main__")


def command_of_two(engine: str, *flags: str) -> list[str]:
    """Returns the command of a training of two workers on MNIST.

    Args:
      engine: "collective", "parameter_server", "mpi", "elastic" or "elastic ps".
      flags: flags of the program.
    """
    program = ["inception.mnist_distributed_train", *flags]
    if engine == "mpi":
        return [*mpirun(2), "-m", *program, "--variable_update=mpi"]
    ps = int(engine in ("parameter_server", "elastic ps"))
    elastic = ["--elastic"] if engine.startswith("elastic") else []
    launch = [sys.executable, "-m", "inception.testing.forked_launch", f"--ps={ps}", "2"]
    return [*launch, *program, *elastic]
