"""Do coded gradients train as well as float ones?

Trains a recipe with each kind of gradients, evaluates every checkpoint on the test images, and
compares accuracy and bits: with the paper's (arXiv 1705.07878, section 4) for lenet and cifar10,
of all codecs for codecs (cifar10_alexnet) and resnet (ResNet-20), with local steps for local_steps
(cifar10_alexnet). On 2 cores lenet takes half an hour and cifar10 two hours. Run a stopped command
again to continue it. A folder of --output_dir that holds a training on other data is refused.

With --tuning_steps each kind of gradients first chooses its learning rate: that with the lowest
entropy loss after so many steps of training with seed 1. A rate with which the training fails, for
example because it diverges, is not chosen.

With --torch_python the recipe codecs also trains with PyTorch's DDP, its float16 hook and PowerSGD.

python -m benchmarks.accuracy_benchmark --recipe=lenet --data_dir=DIR --output_dir=DIR
"""

import dataclasses
import functools
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks import report
from benchmarks.recipes import RECIPES, Gradients, Recipe
from inception.flags.table import NAMES, TEXT, at_least, flag, one_of, refuse
from inception.results.report import Run, read_run, read_scalars
from inception.results.report import draw as draw_runs
from inception.training.evaluate import measure_checkpoints
from slim.datasets.files import replacing_text
from terngrad.training import checkpoints

_CHECKPOINTS = 20
_LOG_EVERY = 10  # steps; shorter runs have no curve
_LARGEST_OF_FAILURES = 128  # a larger exit status is that of a signal
_DATA = "data_dir"  # file of a training's folder: the folder of its data


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(report.Options):
    recipe: str = flag("Training", one_of(*RECIPES), "lenet", "recipe to train")
    trainings: tuple[str, ...] = flag("Training", NAMES, (), "kinds of gradients; not set = all")
    data_dir: str = flag("Data", TEXT, "/tmp/mydata", "folder of the record files")
    torch_python: str = flag("Runtime", TEXT, "", "interpreter with torch, for ddp_...")
    output_dir: str = flag("Training", TEXT, "results", "folder for the runs and the pictures")
    max_steps: int | None = flag(
        "Training", at_least(_LOG_EVERY), None, "length of each training; not set = the recipe's"
    )
    seeds: int = flag("Training", at_least(1), 1, "trainings of each kind, with seeds 1, 2, ...")
    tuning_steps: int | None = flag(
        "Training", at_least(_LOG_EVERY), None, "steps to choose a learning rate; not set = none"
    )


@dataclasses.dataclass(frozen=True)
class _Training:
    """A training of a recipe; its folder tells it from all others."""

    recipe: Recipe
    name: str
    steps: int
    learning_rate: float
    seed: int = 1

    @property
    def gradients(self) -> Gradients:
        return self.recipe.trainings[self.name]

    @property
    def batch_size(self) -> int:
        return round(self.recipe.batch_size * self.gradients.batch_share)

    def folder(self, output_dir: str) -> str:
        """Returns its folder; the name says what is not the recipe's own."""
        own = self.steps == self.recipe.max_steps
        length = "" if own else f"_{self.steps}"
        if self.name + length in self.recipe.trainings and not own:  # float with 64 steps: float_64
            length += "steps"
        own = self.learning_rate == self.recipe.learning_rates[0]
        rate = "" if own else f"_rate{self.learning_rate:g}"
        seed = "" if self.seed == 1 else f"_seed{self.seed}"
        return os.path.join(output_dir, f"{self.recipe.prefix}_{self.name}{length}{rate}{seed}")

    def run(self, options: _Options) -> str:
        """Trains unless that is done; returns the folder. A failure ends the program."""
        if status := self.status(options):
            sys.exit(status)
        return self.folder(options.output_dir)

    def status(self, options: _Options) -> int:
        """Trains unless that is done; returns the exit status. A signal's ends the program.

        Raises:
          ValueError: the folder holds a training on other data.
        """
        folder = self.folder(options.output_dir)
        if other := _other_data(folder, options.data_dir):
            why = f"{folder} holds a training on {other}; choose another --output_dir"
            raise refuse("data_dir", options.data_dir, why)
        if os.path.exists(os.path.join(folder, f"model.ckpt-{self.steps}.index")):
            return 0
        about = f"{self.gradients.title}, rate {self.learning_rate:g}, seed {self.seed}"
        print(f"\nTraining {self.recipe.title}, {about}:", flush=True)
        code = subprocess.run(self._command(options, folder), check=False).returncode
        status = 128 - code if code < 0 else code
        if status > _LARGEST_OF_FAILURES:
            sys.exit(status)
        return status

    def _command(self, options: _Options, folder: str) -> list[str]:
        recipe = self.recipe
        common = [
            f"--data_dir={options.data_dir}",
            f"--train_dir={folder}",
            f"--net={recipe.net}",
            f"--batch_size={self.batch_size // recipe.workers}",
            f"--max_steps={self.steps}",
            f"--save_iter={math.ceil(self.steps / _CHECKPOINTS)}",
            f"--initial_learning_rate={self.learning_rate}",
            f"--seed={self.seed}",
        ]
        if self.gradients.ddp:
            return [
                *(sys.executable, "-m", "benchmarks.ddp.train", *common),
                f"--torch_python={options.torch_python}",
                f"--kind={self.gradients.ddp}",
                f"--dataset={recipe.dataset}",
                f"--hosts={recipe.workers}",
                *(each for each in recipe.flags if each.startswith("--weight_decay=")),
            ]
        program = f"inception.{recipe.dataset}_"
        launched = [str(recipe.workers), f"{program}distributed_train"]
        return [
            *(sys.executable, "-m"),
            *([f"{program}train"] if recipe.workers == 1 else ["inception.launch", *launched]),
            *common,
            "--keep_checkpoints=0",
            *recipe.flags,
            *self.gradients.flags,
            "--quantize_logits=True",
        ]


def _other_data(folder: str, data_dir: str) -> str:
    """Returns the data that a folder's checkpoints are of, if they are others; else notes these.

    Nothing is known of the data of folders from before 2026-11-30, which have no such file.
    """
    file, here = os.path.join(folder, _DATA), os.path.realpath(data_dir)
    if checkpoints.all_checkpoints(folder):
        if not os.path.exists(file):
            return ""
        with open(file) as noted:
            known = noted.read().strip()
        return known if known != here else ""
    os.makedirs(folder, exist_ok=True)
    with replacing_text(file) as noted:
        noted.write(f"{here}\n")
    return ""


def main(options: _Options) -> None:
    """Trains the missing runs, evaluates all, and reports."""
    recipe = RECIPES[options.recipe]
    steps = options.max_steps or recipe.max_steps
    for name, length in (("max_steps", steps), ("tuning_steps", options.tuning_steps or 0)):
        if length % recipe.round_steps:
            allowed = f"allowed are multiples of {recipe.round_steps} with this recipe"
            raise refuse(name, length, allowed)
    names = options.trainings
    if not names:
        names = tuple(recipe.trainings) if options.torch_python else recipe.own_trainings
    if not set(names) <= set(recipe.trainings):
        allowed = f"allowed are {', '.join(recipe.trainings)}"
        raise refuse("trainings", ",".join(names), allowed)
    if len(set(names)) < len(names):
        raise refuse("trainings", ",".join(names), "one appears twice")
    if any(recipe.trainings[name].ddp for name in names) and not options.torch_python:
        raise refuse("trainings", ",".join(names), "those of DDP need --torch_python")
    evaluate = functools.partial(
        measure_checkpoints,
        net=recipe.net,
        dataset_name=recipe.dataset,
        data_dir=options.data_dir,
    )
    rates = {name: _learning_rate(recipe, name, options) for name in names}
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for seed in range(1, options.seeds + 1):  # so that all kinds are there when it is stopped
        for name in names:
            training = _Training(recipe, name, steps, rates[name], seed)
            folder = training.run(options)
            images = training.batch_size // recipe.workers  # each worker counts its own
            found = read_run(folder, batch_size=images, evaluate=evaluate)
            runs[name].append(found)
    title = f"{recipe.title}: {steps} steps"
    rows = [_row(runs[name], recipe, name, rates[name]) for name in names]
    report.print_table(rows, title)
    _draw(runs, recipe, os.path.join(options.output_dir, options.recipe), title)
    figures = {
        name: {
            "paper": recipe.trainings[name].paper,
            "learning_rate": rates[name],
            "seeds": [dataclasses.asdict(run) for run in runs[name]],
        }
        for name in names
    }
    report.conclude(options, {"steps": steps, "runs": figures})


def _learning_rate(recipe: Recipe, name: str, options: _Options) -> float:
    """Returns the recipe's own learning rate, or the best one after short trainings.

    Raises:
      ValueError: the training fails, or ends with a loss that is not finite, with each rate.
    """
    if options.tuning_steps is None:
        return recipe.learning_rates[0]

    def loss(rate: float) -> float:
        training = _Training(recipe, name, options.tuning_steps, rate)
        if status := training.status(options):
            print(f"Rate {rate:g} is left out: the training ended with exit status {status}.")
            return math.inf
        losses = read_scalars(training.folder(options.output_dir))
        values = losses["losses/entropy_loss"].values
        mean = statistics.fmean(values[-math.ceil(len(values) / 10) :])
        return mean if math.isfinite(mean) else math.inf

    losses = {rate: loss(rate) for rate in recipe.learning_rates}
    best = min(losses, key=losses.__getitem__)
    if losses[best] == math.inf:
        rates = ", ".join(f"{rate:g}" for rate in losses)
        why = f"{recipe.trainings[name].title}: no learning rate gives a finite loss"
        raise refuse("tuning_steps", options.tuning_steps, f"{why}; tried were {rates}")
    return best


def _row(runs: Sequence[Run], recipe: Recipe, name: str, rate: float) -> dict[str, str]:
    paper = recipe.trainings[name].paper
    compared = {f"paper, {recipe.paper_steps:,} steps": f"{paper:.2f} %" if paper else ""}
    mean, deviation = _precision(runs)
    return {
        "gradients": recipe.trainings[name].title,
        "learning rate": f"{rate:g}",
        "precision @ 1": f"{mean:.2f} %" + (f" ± {deviation:.2f}" if len(runs) > 1 else ""),
        **(compared if recipe.paper_steps else {}),
        "bytes per node and step": f"{_median(runs, 'payload_bytes'):,.0f}",
        "bits per parameter": f"{_median(runs, 'bits_per_parameter'):.3f}",
        "ms/step": f"{_median(runs, 'ms_per_step'):.1f}",
    }


def _precision(runs: Sequence[Run]) -> tuple[float, float]:
    """Returns the mean in percent and the standard deviation of the seeds; 0 for one seed."""
    values = [100 * run.metrics.precision_at_1 for run in runs]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _median(runs: Sequence[Run], field: str) -> float:
    return statistics.median(getattr(run, field) for run in runs)


def _draw(runs: Mapping[str, Sequence[Run]], recipe: Recipe, path: str, title: str) -> None:
    """Draws the curves of seed 1, and accuracy over bits."""
    curves, bits = f"{path}_accuracy.png", f"{path}_bits.png"
    titles = {name: recipe.trainings[name].title for name in runs}
    draw_runs({titles[name]: each[0] for name, each in runs.items()}, curves, title)
    with report.picture(bits, width=8.0, height=5.0) as (axes,):
        for name, each in runs.items():
            mean, deviation = _precision(each)
            sent = _median(each, "bits_per_parameter")
            axes.errorbar(sent, mean, deviation, fmt="o", capsize=3, label=titles[name])
        axes.set(title=title, xlabel="bits sent per parameter and step", xscale="log")
        axes.set(ylabel="test precision @ 1 (%)")
        axes.grid(alpha=0.3)
        axes.legend()
    print(f"Curves: {curves}\nAccuracy over bits: {bits}")


if __name__ == "__main__":
    report.run(main, _Options)
