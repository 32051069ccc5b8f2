"""Do ternary gradients train as well as float ones?

Trains a recipe of the paper (arXiv 1705.07878, section 4) with each kind of gradients, evaluates
every checkpoint on the test images, and compares the results with the paper's. On 2 cores lenet
takes half an hour and cifar10 two hours. Run a stopped command again to continue it.

python -m benchmarks.accuracy_benchmark --recipe=lenet --data_dir=DIR --output_dir=DIR
"""

import dataclasses
import functools
import math
import os
import subprocess
import sys

from benchmarks import report
from benchmarks.recipes import RECIPES, Gradients, Recipe
from inception.flags.table import TEXT, at_least, flag, one_of
from inception.results import comparison
from inception.results.report import Run, read_run
from inception.training.evaluate import measure_checkpoints

_CHECKPOINTS = 20
_LOG_EVERY = 10  # steps; shorter runs have no curve


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.Options):
    recipe: str = flag("Training", one_of(*RECIPES), "lenet", "recipe to train: lenet or cifar10")
    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of the record files")
    output_dir: str = flag("Training", TEXT, "results", "folder for the runs and the picture")
    max_steps: int | None = flag("Training", at_least(_LOG_EVERY), None, "not set = the recipe's")


def main(options: _Options) -> None:
    """Trains the missing runs, evaluates all, and reports."""
    recipe = RECIPES[options.recipe]
    steps = options.max_steps or recipe.max_steps
    evaluate = functools.partial(
        measure_checkpoints,
        net=recipe.net,
        dataset_name=recipe.dataset,
        data_dir=options.data_dir,
    )
    runs = {}
    for name, training in recipe.trainings.items():
        folder = folder_of(options.output_dir, recipe, name, steps)
        if not os.path.exists(os.path.join(folder, f"model.ckpt-{steps}.index")):
            print(f"\nTraining {recipe.title}, {training.title}:", flush=True)
            _train(recipe, training, options.data_dir, folder, steps)
        runs[name] = read_run(folder, batch_size=recipe.batch_size, evaluate=evaluate)
    title = f"{recipe.title}: {steps} steps"
    report.print_table([_row(run, recipe, name) for name, run in runs.items()], title)
    picture = os.path.join(options.output_dir, f"{options.recipe}_accuracy.png")
    titled = {recipe.trainings[name].title: run for name, run in runs.items()}
    comparison.draw(titled, picture, title)
    print(f"Curves: {picture}")
    figures = {
        name: {"paper": recipe.trainings[name].paper, **dataclasses.asdict(run)}
        for name, run in runs.items()
    }
    report.conclude(options, {"steps": steps, "runs": figures})


def folder_of(output_dir: str, recipe: Recipe, name: str, steps: int) -> str:
    """Returns the folder of a training; its name has the length if that is not the recipe's."""
    length = "" if steps == recipe.max_steps else f"_{steps}"
    return os.path.join(output_dir, f"{recipe.prefix}_{name}{length}")


def _train(
    recipe: Recipe, training: Gradients, data_dir: str, train_dir: str, max_steps: int
) -> None:
    command = [
        *(sys.executable, "-m", f"inception.{recipe.dataset}_train"),
        f"--data_dir={data_dir}",
        f"--train_dir={train_dir}",
        f"--net={recipe.net}",
        f"--batch_size={recipe.batch_size}",
        f"--max_steps={max_steps}",
        f"--save_iter={math.ceil(max_steps / _CHECKPOINTS)}",
        "--keep_checkpoints=0",
        *recipe.flags,
        f"--grad_bits={training.grad_bits}",
        f"--num_nodes={training.num_nodes}",
        f"--clip_factor={training.clip_factor}",
        "--quantize_logits=True",
    ]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code if code > 0 else 128 - code)


def _row(run: Run, recipe: Recipe, name: str) -> dict[str, str]:
    paper = recipe.trainings[name].paper
    return {
        "gradients": recipe.trainings[name].title,
        "precision @ 1": f"{100 * run.metrics.precision_at_1:.2f} %",
        f"paper, {recipe.paper_steps:,} steps": f"{paper:.2f} %" if paper else "",
        "bytes per node and step": f"{run.payload_bytes:,.0f}",
        "bits per parameter": f"{run.bits_per_parameter:.3f}",
        "ms/step": f"{run.ms_per_step:.1f}",
    }


if __name__ == "__main__":
    report.run(main, _Options)
