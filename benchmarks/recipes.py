"""The paper's recipes and their published accuracy (arXiv 1705.07878, section 4)."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Gradients:
    """One training of a recipe.

    Attributes:
      title: its name in tables.
      grad_bits, num_nodes, clip_factor: the flags that differ between trainings.
      paper: the paper's test accuracy in percent; None if the paper has none.
    """

    title: str
    grad_bits: int
    num_nodes: int
    clip_factor: float = 0.0
    paper: float | None = None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe: common settings and its trainings.

    Attributes:
      title: title of table and picture.
      prefix: first part of the names of the trainings' folders.
      dataset, net, batch_size, max_steps, flags: settings of the training program.
      paper_steps: length of the paper's trainings.
      trainings: the trainings, by the rest of their folders' names.
    """

    title: str
    prefix: str
    dataset: str
    net: str
    batch_size: int
    max_steps: int
    flags: tuple[str, ...]
    paper_steps: int
    trainings: Mapping[str, Gradients]


RECIPES = {
    "lenet": Recipe(
        title="LeNet on MNIST",
        prefix="lenet",
        dataset="mnist",
        net="lenet",
        batch_size=64,
        max_steps=10_000,
        flags=(
            "--optimizer=momentum",
            "--initial_learning_rate=0.01",
            "--learning_rate_decay_type=polynomial",
            "--weight_decay=0.0005",
        ),
        paper_steps=10_000,
        trainings={
            "float": Gradients("float", 32, 1, paper=99.21),
            "t2": Gradients("ternary, 2 nodes", 1, 2, paper=99.22),
            "t4": Gradients("ternary, 4 nodes", 1, 4, paper=99.09),
            "t8": Gradients("ternary, 8 nodes", 1, 8, paper=99.11),
        },
    ),
    "cifar10": Recipe(
        title="cifar10_alexnet on CIFAR-10, 2 nodes",
        prefix="cifar",
        dataset="cifar10",
        net="cifar10_alexnet",
        batch_size=128,
        max_steps=20_000,
        flags=("--optimizer=adam", "--initial_learning_rate=0.0002", "--weight_decay=0.004"),
        paper_steps=300_000,
        trainings={
            "float": Gradients("float", 32, 2, paper=86.56),
            "clip": Gradients("ternary, clip 2.5", 1, 2, clip_factor=2.5, paper=85.64),
            "none": Gradients("ternary, no clipping", 1, 2),
        },
    ),
}
