"""Trains LeNet on real digits twice, with float and with ternary gradients, and compares them.

The digits are the repository's own sample of MNIST. Both runs use the same seed and 4 virtual
nodes. The program ends with a table, a picture and the command that opens TensorBoard.
"""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag

_NODES = 4
_BATCH_SIZE = 64
_CHECKPOINTS = 10
_RUNS = {
    "float": ("--grad_bits=32",),
    "ternary": ("--grad_bits=1", "--clip_factor=2.5", "--quantize_logits=True"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    output_dir: str = flag(
        "Training", TEXT, "quickstart_results", "folder for records, runs and the picture"
    )
    max_steps: int = flag("Training", at_least(_CHECKPOINTS), 1000, "length of each run", "steps")


def main(values: FlagValues) -> None:
    """Converts, trains twice, evaluates, reports."""
    options = table.read(_Options, values)
    records = os.path.join(options.output_dir, "mnist")
    sample = Path(__file__).parents[1] / "slim" / "datasets" / "mnist_sample"
    _run(
        "slim.download_and_convert_data",
        "--dataset_name=mnist",
        f"--dataset_dir={records}",
        f"--source_dir={sample}",
    )
    for name, ternary_flags in _RUNS.items():
        print(f"\nTraining LeNet with {name} gradients for {options.max_steps} steps:", flush=True)
        _run("inception.mnist_train", *_train_flags(options, name, records), *ternary_flags)
    _report(options, records)


def train_dir(output_dir: str, name: str, max_steps: int) -> str:
    """Returns the folder of a run. A run of another length is another run."""
    return os.path.join(output_dir, f"lenet_{name}_{max_steps}")


def _train_flags(options: _Options, name: str, records: str) -> list[str]:
    return [
        f"--data_dir={records}",
        f"--train_dir={train_dir(options.output_dir, name, options.max_steps)}",
        "--net=lenet",
        f"--num_nodes={_NODES}",
        f"--batch_size={_BATCH_SIZE}",
        f"--max_steps={options.max_steps}",
        f"--save_iter={options.max_steps // _CHECKPOINTS}",
        "--keep_checkpoints=0",
        "--initial_learning_rate=0.01",
        "--learning_rate_decay_type=polynomial",
    ]


def _run(module: str, *arguments: str) -> None:
    child = subprocess.Popen([sys.executable, "-m", module, *arguments])
    # Ctrl-C reaches the child, too. After either signal it saves and ends by itself.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: child.terminate()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    code = child.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code:
        sys.exit(code if code > 0 else 128 - code)


def _report(options: _Options, records: str) -> None:
    with app.quiet_import():
        # Loaded after the runs, so that these have more memory.
        from inception.results import report
        from inception.training.evaluate import measure_checkpoints

    evaluate = functools.partial(
        measure_checkpoints, net="lenet", dataset_name="mnist", data_dir=records
    )
    runs = {
        name: report.read_run(
            train_dir(options.output_dir, name, options.max_steps),
            batch_size=_BATCH_SIZE,
            evaluate=evaluate,
        )
        for name in _RUNS
    }
    report.print_table(runs, f"LeNet, {_NODES} nodes, {options.max_steps} steps")
    picture = os.path.join(options.output_dir, "comparison.png")
    report.draw(runs, picture, f"LeNet on {_NODES} nodes: float and ternary gradients")
    print(f"Curves and bytes: {picture}")
    print(f"TensorBoard: {sys.executable} -m tensorboard.main --logdir={options.output_dir}")


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
