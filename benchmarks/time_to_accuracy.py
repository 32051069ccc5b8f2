"""How long do hosts on a slow network train until a net reaches a target accuracy?

Trains LeNet on MNIST on several hosts, once with each kind of gradients, and evaluates every
checkpoint on the test images. Measures the time from the launch until a checkpoint is written.
Hosts are network namespaces on this machine (network.sh; needs root) that share its cores.

python -m benchmarks.time_to_accuracy --data_dir=DIR --output_dir=DIR --json=figures.json
"""

import dataclasses
import functools
import os
import time
from collections.abc import Mapping, Sequence

from benchmarks import host_network, report
from benchmarks.report import names_flag
from inception.cluster.namespaces import BANDWIDTH
from inception.flags.table import at_least, flag, number
from inception.results.report import read_run
from inception.training.evaluate import measure_checkpoints
from terngrad.training import checkpoints

_TERNARY = ("--grad_bits=1", "--quantize_logits=True")
_BY_CHANNEL = ("--quantize_logits=True", "--draws=antithetic", "--scale_by=channel")
_LEVELS7 = ("--grad_bits=3", "--clip_factor=4", *_BY_CHANNEL)
_LOCAL = ("--codec=ternary-feedback", "--outer_feedback=0.75")
GRADIENTS = {
    "float32": ("--grad_bits=32",),
    "float16": ("--grad_bits=16",),
    "ternary": _TERNARY,
    "ternary_channel": ("--grad_bits=1", "--clip_factor=2.5", *_BY_CHANNEL),
    "levels7_channel": _LEVELS7,
    "ternary_both_ways": (*_TERNARY, "--sum_codec=ternary"),
    "float32_local16": ("--grad_bits=32", "--local_steps=16"),
    "ternary_local4": (*_LOCAL, "--local_steps=4"),
    "ternary_local16": (*_LOCAL, "--local_steps=16"),
    "levels7_local16": (*_LEVELS7, "--local_steps=16"),
}
_REPORTED = ("hosts", "rate", "batch_size", "initial_learning_rate", "max_steps", "save_iter")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.MnistOptions):
    gradients: tuple[str, ...] = names_flag(
        "Training", tuple(GRADIENTS), "kinds of gradients", ("float32", "ternary")
    )
    hosts: int = flag("Distributed", at_least(2), 4, "number of hosts", "hosts")
    rate: str = flag("Distributed", BANDWIDTH, "100mbit", "bandwidth")
    batch_size: int = flag("Training", at_least(1), 64, "images per host and step", "images")
    initial_learning_rate: float = flag("Training", number(above=True), 0.04, "that of step 1")
    max_steps: int = flag("Training", at_least(10), 1500, "length of each run", "steps")
    save_iter: int = flag("Training", at_least(1), 50, "steps between checkpoints", "steps")
    target: float = flag("Evaluation", number(0, 1), 0.99, "target precision @ 1")
    timeout_secs: float = flag("Runtime", number(), 7200.0, "time-out of a run", "seconds")


def main(options: _Options) -> None:
    """Trains, evaluates and reports."""
    folders = options.new_folders(options.gradients)
    launched = {}
    with host_network.network(options.hosts) as network:
        network.shape(options.rate)
        for kind, folder in folders.items():
            print(f"{options.hosts} hosts, {options.rate}, {kind}", flush=True)
            launched[kind] = time.time()
            commands = _commands(options, network.addresses, kind, folder)
            network.run_programs(commands, options.timeout_secs)
    found = {kind: _read(options, folders[kind], launched[kind]) for kind in folders}
    report.print_table([_row(kind, run, options) for kind, run in found.items()])
    report.conclude(
        options, {"runs": found}, **{name: getattr(options, name) for name in _REPORTED}
    )
    if options.png:
        _draw(found, options)


def _commands(
    options: _Options, addresses: Sequence[str], kind: str, folder: str
) -> list[list[str]]:
    common = [
        *report.module("inception.mnist_distributed_train"),
        f"--data_dir={options.data_dir}",
        f"--train_dir={folder}",
        f"--worker_hosts={','.join(addresses)}",
        "--allow_insecure_network",
        f"--batch_size={options.batch_size}",
        f"--max_steps={options.max_steps}",
        f"--save_iter={options.save_iter}",
        "--keep_checkpoints=0",
        "--optimizer=momentum",
        f"--initial_learning_rate={options.initial_learning_rate}",
        "--learning_rate_decay_type=polynomial",
        *GRADIENTS[kind],
    ]
    return [[*common, f"--task_id={i}"] for i in range(options.hosts)]


def _read(options: _Options, folder: str, launched: float) -> dict:
    evaluate = functools.partial(
        measure_checkpoints, net="lenet", dataset_name="mnist", data_dir=options.data_dir
    )
    # The batch size of one worker: each worker counts its own examples.
    run = read_run(folder, batch_size=options.batch_size, evaluate=evaluate)
    written = [os.path.getmtime(f"{p}.index") for p in checkpoints.all_checkpoints(folder)]
    secs = [moment - launched for moment in written]
    reached = (i for i, precision in enumerate(run.accuracy.values) if precision >= options.target)
    first = next(reached, None)
    return {
        "steps": run.accuracy.steps,
        "secs": secs,
        "precision_at_1": run.accuracy.values,
        "ms_per_step": run.ms_per_step,
        "steps_to_target": None if first is None else run.accuracy.steps[first],
        "secs_to_target": None if first is None else secs[first],
    }


def _row(kind: str, run: dict, options: _Options) -> dict[str, object]:
    steps, secs = run["steps_to_target"], run["secs_to_target"]
    target = f"{100 * options.target:g} %"
    return {
        "gradients": kind,
        "ms/step": f"{run['ms_per_step']:.1f}",
        f"steps to {target}": "not reached" if steps is None else steps,
        f"seconds to {target}": "" if secs is None else f"{secs:.0f}",
        "last precision @ 1": f"{100 * run['precision_at_1'][-1]:.2f} %",
    }


def _draw(found: Mapping[str, dict], options: _Options) -> None:
    with report.picture(options.png, width=8.0) as (axes,):
        for kind, run in found.items():
            percent = [100 * value for value in run["precision_at_1"]]
            axes.plot(run["secs"], percent, marker=".", label=kind)
        axes.axhline(100 * options.target, color="grey", linestyle="--")
        axes.set(
            title=f"LeNet on MNIST, {options.hosts} hosts, {options.rate}",
            xlabel="seconds from the launch",
            ylabel="test precision @ 1 (%)",
            ylim=(100 * options.target - 3, 100),
        )
        axes.legend()


if __name__ == "__main__":
    report.run(main, _Options)
