"""What accuracy does asynchronous training reach, in how much time, with how many bytes?

Trains the asynchronous example of distributed TensorFlow: a 784-100-10 sigmoid net on MNIST, SGD
with learning rate 0.001, batches of 100. Each worker trains for 20 epochs of all images through one
ps. All runs are on this machine: with float gradients, with ternary ones, and ternary both ways.

python -m benchmarks.asynchronous_benchmark --data_dir=DIR --output_dir=DIR --json=figures.json
"""

import collections
import dataclasses
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks import report
from benchmarks.report import counts, names_flag
from inception.flags.configs import EvalConfig
from inception.flags.table import at_least, flag
from inception.results.report import mean_of_steps, read_scalars
from inception.training import evaluate
from slim.datasets import dataset_factory
from terngrad.training import checkpoints

_TERNARY = ("--grad_bits=1", "--quantize_logits=True")
GRADIENTS = {
    "float": ("--grad_bits=32",),
    "ternary": _TERNARY,
    "ternary_both_ways": (*_TERNARY, "--pull_codec=ternary"),
}
PUBLISHED = {1: 0.42, 2: 0.58, 3: 0.65}  # test accuracy by workers, of the original example
_BATCH = 100
_LINES = {"start": "A run begins", "end": "Finished training .*ckpt"}  # lines of the chief
_LAST_LINES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.MnistOptions):
    workers: tuple[int, ...] = flag("Distributed", counts(), (1, 2, 3), "number of workers, by run")
    gradients: tuple[str, ...] = names_flag("Training", tuple(GRADIENTS), "kinds of gradients")
    epochs: int = flag("Training", at_least(1), 20, "epochs that each worker trains", "epochs")


def main(options: _Options) -> None:
    """Trains, evaluates and reports."""
    images = dataset_factory.get_dataset("mnist", "train", options.data_dir).num_examples
    runs = {f"{kind}_{n}": (kind, n) for kind in options.gradients for n in options.workers}
    folders = options.new_folders(runs)
    found: dict[str, dict[int, dict]] = {}
    for name, (kind, workers) in runs.items():
        steps = workers * options.epochs * (images // _BATCH)
        print(f"{kind}, {workers} workers, {steps} updates", flush=True)
        secs = training_secs(_command(options, kind, workers, steps, folders[name]))
        found.setdefault(kind, {})[workers] = _read(options, folders[name], steps, secs)
        print(found[kind][workers], flush=True)
    report.print_table([_row(kind, n, run) for kind in found for n, run in found[kind].items()])
    report.conclude(options, {"runs": found}, epochs=options.epochs)
    if options.png:
        _draw(found, options.png)


def _command(options: _Options, kind: str, workers: int, steps: int, folder: str) -> Sequence[str]:
    return [
        *(sys.executable, "-m", "inception.launch", "--ps=1", str(workers)),
        "inception.mnist_distributed_train",
        "--cross_replica_sync=False",
        "--net=mlp",
        f"--data_dir={options.data_dir}",
        "--split_data=False",  # each worker trains on all images
        f"--train_dir={folder}",
        f"--batch_size={_BATCH}",
        f"--max_steps={steps}",
        "--optimizer=gd",
        "--initial_learning_rate=0.001",
        "--learning_rate_decay_type=fixed",
        "--moving_average_decay=0",
        "--save_iter=0",
        "--save_summaries_secs=30",
        "--num_intra_threads=1",
        "--num_inter_threads=2",
        *GRADIENTS[kind],
    ]


def training_secs(command: Sequence[str]) -> float:
    """Runs a training; returns the seconds from the start of its steps to its end.

    Raises:
      ValueError: the command failed or did not print when the steps started and ended.
    """
    moments: dict[str, float] = {}
    lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            lines.append(line.rstrip())
            for name, pattern in _LINES.items():
                if re.search(pattern, line):
                    moments[name] = time.monotonic()
    if process.returncode or moments.keys() != _LINES.keys():
        lacking = [
            f"no line {pattern!r}" for name, pattern in _LINES.items() if name not in moments
        ]
        why = ", ".join([f"exit status {process.returncode}", *lacking])
        raise ValueError(f"the training failed ({why}): {' | '.join(lines)}")
    return moments["end"] - moments["start"]


def _read(options: _Options, folder: str, steps: int, secs: float) -> dict:
    config = EvalConfig(
        net="mlp",
        dataset_name="mnist",
        data_dir=options.data_dir,
        subset="test",
        batch_size=500,
        num_examples=-1,
        restore_avg_var=False,
    )
    path = checkpoints.latest_checkpoint(folder)
    metrics = evaluate.measure_checkpoint(path, evaluate.prepare_evaluation(config))
    scalars = read_scalars(folder)
    staleness = scalars["staleness/mean"].values
    return {
        "precision_at_1": metrics.precision_at_1,
        "updates": steps,
        "secs": secs,
        "bytes_pushed": mean_of_steps(scalars["bytes_sent_per_step"]),
        "bytes_pulled": mean_of_steps(scalars["bytes_received_per_step"]),
        "mean_staleness": sum(staleness) / len(staleness),
    }


def _row(kind: str, workers: int, run: Mapping[str, float]) -> dict[str, object]:
    return {
        "gradients": kind,
        "workers": workers,
        "precision @ 1": f"{run['precision_at_1']:.3f}",
        "original": PUBLISHED.get(workers, ""),
        "seconds": f"{run['secs']:.0f}",
        "updates/sec": f"{run['updates'] / run['secs']:.0f}",
        "bytes pushed": f"{run['bytes_pushed']:,.0f}",
        "pulled": f"{run['bytes_pulled']:,.0f}",
        "staleness": f"{run['mean_staleness']:.2f}",
    }


def _draw(found: Mapping[str, Mapping[int, dict]], path: str) -> None:
    with report.picture(path, 2, width=4.0, height=3.2) as (accuracy, seconds):
        for kind, runs in found.items():
            precision = [run["precision_at_1"] for run in runs.values()]
            accuracy.plot(list(runs), precision, marker="o", label=kind)
            seconds.plot(list(runs), [run["secs"] for run in runs.values()], marker="o", label=kind)
        known = [workers for workers in runs if workers in PUBLISHED]
        original = [PUBLISHED[workers] for workers in known]
        accuracy.plot(known, original, color="grey", linestyle="--", label="original example")
        accuracy.set(xlabel="workers", ylabel="test precision @ 1", xticks=list(runs))
        seconds.set(xlabel="workers", ylabel="seconds", xticks=list(runs), ylim=(0, None))
        accuracy.legend()


if __name__ == "__main__":
    report.run(main, _Options)
