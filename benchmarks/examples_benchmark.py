"""How well do the examples train with each kind of gradients?

Each program of examples/ trains alone and on two workers of this machine, with the same batches in
total, with seeds 1, 2, ... for its weights and codes. It takes an hour or two on 2 cores.

python -m benchmarks.examples_benchmark --data_dir=FOLDER --cifar10=ARCHIVE --seeds=3
"""

import dataclasses
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from inception.flags.table import NAMES, TEXT, at_least, flag, refuse

_EXAMPLES = Path(__file__).parents[1] / "examples"
_MNIST = Path(__file__).parents[1] / "slim/datasets/mnist_sample"
_BY_CHANNEL = ', scale_by="channel"'
_TRAININGS = {
    "alone": (1, 'gradients="float32"'),
    "float": (2, 'gradients="float32"'),
    "ternary": (2, 'gradients="ternary"'),
    "ternary_channel": (2, f'gradients="ternary", draws="antithetic"{_BY_CHANNEL}'),
    "ternary_feedback": (2, f'gradients="ternary-feedback"{_BY_CHANNEL}'),
    "levels5_channel": (2, f'gradients="5-level", draws="antithetic"{_BY_CHANNEL}'),
    "levels5_feedback": (2, f'gradients="5-level-feedback"{_BY_CHANNEL}'),
    "levels7": (2, 'gradients="7-level"'),  # with all that suits it
    "levels7_all": (2, 'gradients="7-level", size_to_binarize=1'),
}
_DISTRIBUTE = "distribute(optimizer, group)"
_SEED = "set_random_seed(1)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.Options):
    examples: tuple[str, ...] = flag("Training", NAMES, (), "programs to run; not set = all")
    trainings: tuple[str, ...] = report.names_flag(
        "Training", tuple(_TRAININGS), "kinds of gradients"
    )
    seeds: int = flag("Training", at_least(1), 1, "trainings of each kind, with seeds 1, 2, ...")
    train_size: int = flag("Training", at_least(1), 3000, "images or reviews to train on")
    test_size: int = flag("Training", at_least(1), 1000, "images or reviews to test with")
    epochs: int = flag("Training", at_least(1), 4, "epochs of each training")
    batch_size: int = flag("Training", at_least(2), 32, "batch of all workers together")
    data_dir: str = flag("Data", TEXT, str(_MNIST), "folder with MNIST's gzipped files")
    cifar10: str = flag("Data", TEXT, "", "cifar-10-python.tar.gz; not set = synthetic images")

    def programs(self) -> tuple[str, ...]:
        """Returns the examples to run.

        Raises:
          ValueError: a flag is wrong; the message names it.
        """
        named = {path.stem: path.read_text() for path in _EXAMPLES.glob("*.py")}
        known = sorted(name for name, text in named.items() if _DISTRIBUTE in text)
        if not set(self.examples) <= set(known):
            given = ",".join(self.examples)
            raise refuse("examples", given, f"allowed are {', '.join(known)}")
        if self.cifar10 and not os.path.isfile(self.cifar10):
            raise refuse("cifar10", self.cifar10, "there is no such file")
        if not os.path.isfile(os.path.join(self.data_dir, "train-images-idx3-ubyte.gz")):
            raise refuse("data_dir", self.data_dir, "it has no train-images-idx3-ubyte.gz")
        return self.examples or tuple(known)


def main(options: _Options) -> None:
    """Prints a row for each example, with the accuracy of each kind of training."""
    found: dict[str, dict[str, list[float]]] = {}
    for name in options.programs():
        kinds: dict[str, list[float]] = {kind: [] for kind in options.trainings}
        for seed in range(1, options.seeds + 1):
            for kind in options.trainings:
                kinds[kind].append(_accuracy(options, name, kind, seed))
                print(f"{name}, {kind}, seed {seed}: {100 * kinds[kind][-1]:.1f} %", flush=True)
        found[name] = kinds
    rows = [
        {"example": f"{name}.py", **{kind: _cell(each) for kind, each in kinds.items()}}
        for name, kinds in found.items()
    ]
    report.print_table(rows, "Test accuracy of the examples")
    report.conclude(options, {"accuracy": found})


def _cell(values: Sequence[float]) -> str:
    percent = [100 * value for value in values]
    deviation = f" ± {statistics.stdev(percent):.1f}" if len(percent) > 1 else ""
    return f"{statistics.fmean(percent):.1f} %{deviation}"


def with_settings(text: str, settings: str, seed: int) -> str:
    """Returns an example's text with other settings of `distribute` and another seed."""
    for old in (_DISTRIBUTE, _SEED):
        if text.count(old) != 1:
            raise ValueError(f"the example has `{old}` {text.count(old)} times; allowed is once")
    text = text.replace(_SEED, f"set_random_seed({seed})")
    return text.replace(_DISTRIBUTE, f"distribute(optimizer, group, seed={seed}, {settings})")


def _accuracy(options: _Options, name: str, kind: str, seed: int) -> float:
    """Trains; returns the accuracy that the example prints."""
    workers, settings = _TRAININGS[kind]
    text = with_settings((_EXAMPLES / f"{name}.py").read_text(), settings, seed)
    data = {"cifar10_augmentation": options.cifar10, "text_classification": ""}
    chosen = data.get(name, options.data_dir)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, f"{name}.py")
        program.write_text(text)
        command = [
            *(sys.executable, "-m", "terngrad.launch", "-n", str(workers), str(program)),
            *(f"--train_size={options.train_size}", f"--test_size={options.test_size}"),
            *(f"--epochs={options.epochs}", f"--batch_size={options.batch_size // workers}"),
            *((f"--data={chosen}",) if chosen else ()),
        ]
        path = os.pathsep.join([str(_EXAMPLES.parent), str(_EXAMPLES)])
        run = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    printed = re.findall(r"^(?:\[0\] )?accuracy (\S+)", run.stdout, re.MULTILINE)
    if run.returncode or len(printed) != 1:
        sys.exit(f"{name} failed with {kind} and seed {seed}:\n{run.stdout}")
    return float(printed[0])


if __name__ == "__main__":
    report.run(main, _Options)
