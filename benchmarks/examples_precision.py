"""Measures the precision of the examples alone and on workers of this machine.

python -m benchmarks.examples_precision [--mnist FOLDER] [--cifar10 ARCHIVE] [--only NAME,...]
    [ARGUMENT...]

It prints a row of a table for each example: the last accuracy of the program alone, on two workers
with float gradients, and on two workers with ternary gradients. All have the same batches in total.
Arguments that it does not know go to the examples.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from terngrad.cluster.ports import free_ports

_EXAMPLES = Path(__file__).parents[1] / "examples"
_MNIST = Path(__file__).parents[1] / "slim/datasets/mnist_sample"
_WORKERS = 2


def main(argv: Sequence[str]) -> None:
    """Prints the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--mnist", default=str(_MNIST), help="folder with MNIST's files")
    options.add_argument("--cifar10", default="", help="cifar-10-python.tar.gz; none = made images")
    options.add_argument("--only", default="", help="names of examples, separated by commas")
    options.add_argument("--batch_size", type=int, default=32, help="of all workers together")
    given, others = options.parse_known_args(argv)
    print(
        "| example | alone | 2 workers, float | 2 workers, ternary |\n|---|---|---|---|", flush=True
    )
    for path in sorted(_EXAMPLES.glob("*.py")):
        text = path.read_text()
        is_chosen = not given.only or path.stem in given.only.split(",")
        if "terngrad.join" not in text or not is_chosen:
            continue
        data = {"cifar10_augmentation": given.cifar10, "text_classification": ""}
        chosen = data.get(path.stem, given.mnist)
        arguments = [*others, *(["--data", chosen] if chosen else [])]
        batch = given.batch_size
        cells = [_accuracy(path.stem, text, 1, "float32", [*arguments, f"--batch_size={batch}"])]
        arguments.append(f"--batch_size={batch // _WORKERS}")
        for gradients in ("float32", "ternary"):
            cells.append(_accuracy(path.stem, text, _WORKERS, gradients, arguments))
        row = " | ".join(f"{100 * cell:.1f} %" for cell in cells)
        print(f"| `{path.name}` | {row} |", flush=True)


def _accuracy(
    name: str, text: str, workers: int, gradients: str, arguments: Sequence[str]
) -> float:
    """Runs an example; returns the accuracy that it prints."""
    text = text.replace("(optimizer, group)", f'(optimizer, group, gradients="{gradients}")')
    *ports, control = free_ports(workers + 1, "127.0.0.1")
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    path = os.pathsep.join([str(_EXAMPLES.parent), str(_EXAMPLES)])
    common = {**os.environ, "PYTHONPATH": path}
    if workers > 1:
        common |= {"TERNGRAD_HOSTS": hosts, "TERNGRAD_CONTROL_PORT": str(control)}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, f"{name}.py")
        program.write_text(text)
        runs = [
            subprocess.Popen(
                [sys.executable, str(program), *arguments],
                env={**common, "TERNGRAD_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(workers)
        ]
        outputs = [run.communicate()[0] for run in runs]
    found = re.findall(r"^accuracy (\S+)", outputs[0], re.MULTILINE)
    if not found:
        sys.exit(f"{name} on {workers} workers failed:\n{outputs[0]}")
    return float(found[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
