"""Trains cifar10_alexnet with PyTorch's DDP on several hosts, for benchmarks/accuracy_benchmark.py.

Initial weights, batches, loss, optimizer and averages are those of the suite. Checkpoints and
summaries are written as the suite writes them, so that all runs are evaluated and read alike. Hosts
are network namespaces on this machine (needs root); bytes are those of a host's interface.

python -m benchmarks.ddp.train --torch_python=DIR/bin/python --train_dir=DIR
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks import host_network, report
from benchmarks.ddp.batch_stream import StreamOptions
from benchmarks.recipes import DDP_KINDS
from benchmarks.report import shared_flags
from inception.flags.table import TEXT, at_least, flag, number, one_of, refuse
from inception.training.problem import problem_of
from slim.nets import nets_factory
from terngrad.training import checkpoints

NET = "cifar10_alexnet"  # the one of ddp/worker.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(StreamOptions):
    """The flags of a training."""

    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torch")
    train_dir: str = flag("Training", TEXT, "/tmp/ddp", "folder for checkpoints and summaries")
    kind: str = flag("Training", one_of(*DDP_KINDS), DDP_KINDS[0], "what DDP sends")
    initial_learning_rate: float = flag("Training", number(above=True), 8e-4, "learning rate")
    weight_decay: float = flag("Training", number(0), 0.004, "decay of the dense layers' weights")
    save_iter: int = flag("Training", at_least(1), 1000, "steps between checkpoints", "steps")
    timeout_secs: float = flag("Runtime", number(above=True), 86400.0, "time-out", "seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.torch_python:
            raise refuse("torch_python", "", "must name an interpreter that has torch")
        if self.net != NET:
            raise refuse("net", self.net, f"must be {NET}")


def main(options: Options) -> None:
    """Trains, and writes checkpoints and summaries."""
    classes = _num_classes(options)
    model = nets_factory.build_net(options.net, num_classes=classes, seed=options.seed)
    weights = nets_factory.named_variables(model)
    with tempfile.TemporaryDirectory(prefix="ddp-") as folder:
        np.savez(Path(folder, "initial.npz"), **{name: v.numpy() for name, v in weights.items()})
        with host_network.network(options.hosts) as network:
            network.run_programs(_commands(options, network, folder), options.timeout_secs)
        _write_summaries(options, Path(folder, "figures.jsonl"), model.count_params())
        paths = Path(folder).glob("[0-9]*.npz")
        for path in sorted(paths, key=lambda path: int(path.stem)):
            averages = {f"averages/{name}": tf.Variable(v) for name, v in np.load(path).items()}
            checkpoints.save(options.train_dir, averages, int(path.stem), keep=0)


def _num_classes(options: Options) -> int:
    return problem_of(options.config()).num_classes


def _commands(options: Options, network: host_network.HostNetwork, folder: str) -> list[list[str]]:
    stream = [sys.executable, "-m", "benchmarks.ddp.batch_stream"]
    stream += shared_flags(options, StreamOptions)
    return [
        [
            *(options.torch_python, "-m", "benchmarks.ddp.worker"),
            f"--master={network.addresses[0]}",
            f"--interface={network.interface}",
            f"--output_dir={folder}",
            f"--batches={json.dumps([*stream, f'--task_id={i}'])}",
            f"--task_id={i}",
            *(
                f"--{name}={getattr(options, name)}"
                for name in ("kind", "hosts", "batch_size", "max_steps", "save_iter")
            ),
            f"--initial_learning_rate={options.initial_learning_rate}",
            f"--weight_decay={options.weight_decay}",
        ]
        for i in range(options.hosts)
    ]


def _write_summaries(options: Options, path: Path, parameters: int) -> None:
    """Writes the figures of host 0 under the names of the suite's summaries."""
    with tf.summary.create_file_writer(options.train_dir).as_default():
        for line in map(json.loads, path.read_text().splitlines()):
            tf.summary.experimental.set_step(line["step"])
            tf.summary.scalar("losses/entropy_loss", line["entropy_loss"])
            tf.summary.scalar("losses/reg_loss", line["reg_loss"])
            tf.summary.scalar("losses/total_loss", line["entropy_loss"] + line["reg_loss"])
            tf.summary.scalar("bytes_sent_per_step", line["bytes_sent"])
            tf.summary.scalar("bits_per_parameter", 8 * line["bytes_sent"] / parameters)
            # Of one worker, as each worker counts its own.
            tf.summary.scalar("examples_per_sec", options.batch_size / line["secs"])


if __name__ == "__main__":
    report.run(main, Options)
