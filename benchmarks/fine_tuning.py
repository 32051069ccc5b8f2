"""Does fine-tuning a net need fewer images and steps than training it from scratch?

Writes five classes of CIFAR-10 as folders of JPEG files and trains a net on them. Then it trains
the same net on the other five classes, with few images of each, from scratch and from the first
net's weights. Each run has the same number of steps. Run a stopped command again to continue it.

python -m benchmarks.fine_tuning --source_dir=DIR --output_dir=DIR
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import matplotlib.figure
import numpy as np
import rich.box
import rich.console
import rich.table
from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import TEXT, at_least, flag

_OLD, _NEW = range(5), range(5, 10)  # labels in CIFAR-10
_EVALUATIONS = 10  # of each run
_QUALITY = 95  # of the JPEG files
_OF_ONE_CALL = ("source_dir", "output_dir", "json", "png")  # decide no result


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    source_dir: str = flag("Data", TEXT, "", "folder of CIFAR-10's archive")
    output_dir: str = flag("Data", TEXT, "results", "folder for the pictures, records and runs")
    images: int = flag("Data", at_least(1), 200, "training images of each new class", "images")
    old_images: int = flag("Data", at_least(1), 5000, "of each class of the first net", "images")
    test_images: int = flag("Data", at_least(1), 1000, "of each class", "images")
    image_size: int = flag("Data", at_least(1), 24, "side length of the net's input", "pixels")
    batch_size: int = flag("Data", at_least(1), 32, "images in a step", "images")
    net: str = flag("Training", TEXT, "cifar10_alexnet", "net to train")
    old_steps: int = flag("Training", at_least(10), 3000, "steps of the first net", "steps")
    steps: int = flag("Training", at_least(10), 600, "steps on the new classes", "steps")
    json: str = flag("Runtime", TEXT, "", "JSON file for the figures")
    png: str = flag("Runtime", TEXT, "", "PNG file for a picture of the figures")


def main(values: FlagValues) -> None:
    """Trains the missing runs, evaluates all, and reports."""
    options = table.read(_Options, values)
    _note_options(options)
    old, new = (_records(options, name) for name in ("old", "new"))
    first = _train(options, "first", old, options.old_steps, "--initial_learning_rate=0.02")
    start = (f"--pretrained_model_checkpoint_path={first}", "--fine_tune=True")
    runs = {
        "from scratch": ("scratch", "--initial_learning_rate=0.02"),
        "fine-tuned": ("tuned", "--initial_learning_rate=0.005", *start),
        "fine-tuned, ternary gradients": (
            "tuned_ternary",
            *("--initial_learning_rate=0.005", *start, "--grad_bits=1", "--clip_factor=2.5"),
        ),
    }
    folders = {
        title: _train(options, name, new, options.steps, *flags)
        for title, (name, *flags) in runs.items()
    }
    _report(options, old, first, new, folders)


def _note_options(options: _Options) -> None:
    """Writes the options that decide the results; ValueError if the folder's runs had others."""
    now = {k: v for k, v in dataclasses.asdict(options).items() if k not in _OF_ONE_CALL}
    path = os.path.join(options.output_dir, "options.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
        if changed := [
            f"--{k}={v} (was {before.get(k)})" for k, v in now.items() if v != before.get(k)
        ]:
            why = f"its runs had other options than {', '.join(changed)}; name another folder"
            raise table.refuse("output_dir", options.output_dir, why)
    os.makedirs(options.output_dir, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(now, file)


def _records(options: _Options, name: str) -> str:
    """Returns the folder with the records of the old or of the new classes."""
    folder = os.path.join(options.output_dir, name)
    records = os.path.join(folder, "records")
    with app.quiet_import():
        from slim.datasets import cifar10
    classes = _OLD if name == "old" else _NEW
    counts = {
        "train": options.old_images if name == "old" else options.images,
        "test": options.test_images,
    }
    for split, (images, labels) in cifar10.load(options.source_dir).items():
        for label in classes:
            chosen = images[labels == label][: counts[split]]
            _write_pictures(os.path.join(folder, split, cifar10.INFO.class_names[label]), chosen)
    _run(
        "inception.data.build_image_data",
        f"--train_directory={folder}/train",
        f"--validation_directory={folder}/test",
        f"--output_directory={records}",
    )
    return records


def _write_pictures(folder: str, images: np.ndarray) -> None:
    from PIL import Image

    os.makedirs(folder, exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(os.path.join(folder, f"{number}.jpg"), quality=_QUALITY)


def _train(options: _Options, name: str, records: str, steps: int, *flags: str) -> str:
    """Returns the folder of a training, which is made if its last checkpoint is missing."""
    folder = os.path.join(options.output_dir, name)
    if not os.path.exists(os.path.join(folder, f"model.ckpt-{steps}.index")):
        print(f"\nTraining {name}:", flush=True)
        _run(
            "inception.flowers_train",
            "--dataset_name=images",
            f"--data_dir={records}",
            f"--train_dir={folder}",
            f"--net={options.net}",
            f"--image_size={options.image_size}",
            f"--batch_size={options.batch_size}",
            f"--max_steps={steps}",
            f"--save_iter={max(1, steps // _EVALUATIONS)}",
            "--keep_checkpoints=0",
            "--learning_rate_decay_type=polynomial",
            *flags,
        )
    return folder


def _run(module: str, *arguments: str) -> None:
    code = subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


def _report(options: _Options, old: str, first: str, new: str, folders: Mapping[str, str]) -> None:
    with app.quiet_import():
        from benchmarks import report
    [(_, before)] = _precisions(options, old, first, last=True)
    print(f"The first net: precision @ 1 = {before:.4f}")
    curves = {title: _precisions(options, new, folder) for title, folder in folders.items()}
    found = rich.table.Table("training", "precision @ 1", box=rich.box.MARKDOWN)
    for title, curve in curves.items():
        found.add_row(title, f"{100 * curve[-1][1]:.2f} %")
    rich.console.Console(width=100).print(found)
    circumstances = report.environment() | {
        "net": options.net,
        "images of each new class": options.images,
        "steps": options.steps,
    }
    figures = {"first net": before, "precision @ 1 by step": curves}
    report.conclude(circumstances, figures, options.json)
    if options.png:
        _draw(options, curves)


def _precisions(
    options: _Options, records: str, folder: str, *, last: bool = False
) -> list[tuple[int, float]]:
    """Returns (step, precision @ 1) of each checkpoint of a training, or of the last one."""
    with app.quiet_import():
        from inception.flags.configs import EvalConfig
        from inception.training import evaluate
        from terngrad.training import checkpoints
    config = EvalConfig(
        net=options.net,
        image_size=options.image_size,
        dataset_name="images",
        data_dir=records,
        subset="validation",
        checkpoint_dir=folder,
        batch_size=250,
        num_examples=-1,
    )
    task = evaluate.make_task(config)
    task = task._replace(batches=task.batches.cache())
    paths = checkpoints.all_checkpoints(folder)[-1 if last else 0 :]
    return [
        (checkpoints.step_of(path), evaluate.measure_checkpoint(path, task).precision_at_1)
        for path in paths
    ]


def _draw(options: _Options, curves: Mapping[str, list[tuple[int, float]]]) -> None:
    from inception.results import pictures

    figure = matplotlib.figure.Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for title, curve in curves.items():
        steps, precisions = zip(*curve, strict=True)
        axes.plot(steps, 100 * np.array(precisions), marker=".", label=title)
    axes.set(
        title=f"{options.net}, 5 new classes, {options.images} images each",
        xlabel="step",
        ylabel="precision @ 1 (%)",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    pictures.save(figure, options.png)


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
