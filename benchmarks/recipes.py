"""Recipes to compare gradients by, and the paper's accuracy (arXiv 1705.07878, section 4)."""

import dataclasses
from collections.abc import Mapping

# What PyTorch's DDP sends, see benchmarks/ddp.
DDP_KINDS = ("float32", "float16", "PowerSGD rank 1", "PowerSGD rank 2", "PowerSGD rank 4")


@dataclasses.dataclass(frozen=True)
class Gradients:
    """One training of a recipe.

    Attributes:
      title: its name in tables.
      flags: the flags that differ between trainings.
      paper: the paper's test accuracy in percent; None if the paper has none.
      batch_share: share of the recipe's batch that this training takes.
      ddp: what PyTorch's DDP sends in the place of the suite, see ddp/train.py.
    """

    title: str
    flags: tuple[str, ...]
    paper: float | None = None
    batch_share: float = 1.0
    ddp: str = ""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe: common settings and its trainings.

    Attributes:
      title: title of table and picture.
      prefix: first part of the names of the trainings' folders.
      dataset, net, batch_size, max_steps, flags: settings of the training program; the batch is
        that of all workers together.
      trainings: the trainings, by the rest of their folders' names.
      paper_steps: length of the paper's trainings; 0 if the paper has none.
      round_steps: the lengths of all trainings are multiples of it, as with local steps.
      workers: processes that train together by all-reduce, so that bytes are counted as they are
        sent; 1 = one process, whose nodes send nothing.
      learning_rates: initial learning rates to choose from; the first one is the recipe's own.
    """

    title: str
    prefix: str
    dataset: str
    net: str
    batch_size: int
    max_steps: int
    flags: tuple[str, ...]
    trainings: Mapping[str, Gradients]
    learning_rates: tuple[float, ...]
    paper_steps: int = 0
    round_steps: int = 1
    workers: int = 1

    @property
    def own_trainings(self) -> tuple[str, ...]:
        """Those that need nothing but the suite."""
        return tuple(name for name, each in self.trainings.items() if not each.ddp)


_CLIPPED = ("--clip_factor=2.5",)
_BY_CHANNEL = ("--draws=antithetic", "--scale_by=channel")
_ANTITHETIC_BY_CHANNEL = (*_CLIPPED, *_BY_CHANNEL)
_LEVELS7 = (
    "7 levels, antithetic, by channel",
    ("--grad_bits=3", "--clip_factor=4", *_BY_CHANNEL),
)
_CODECS = {
    "float": Gradients("float", ("--grad_bits=32",)),
    "half_batch": Gradients("float, half the batch", ("--grad_bits=32",), batch_share=0.5),
    "ternary": Gradients("ternary", ("--grad_bits=1", *_CLIPPED)),
    "ternary_channel": Gradients(
        "ternary, antithetic, by channel", ("--grad_bits=1", *_ANTITHETIC_BY_CHANNEL)
    ),
    "ternary_feedback": Gradients(
        "ternary, feedback, by channel", ("--codec=ternary-feedback", "--scale_by=channel")
    ),
    "levels5": Gradients("5 levels", ("--grad_bits=2", *_CLIPPED)),
    "levels5_channel": Gradients(
        "5 levels, antithetic, by channel", ("--grad_bits=2", *_ANTITHETIC_BY_CHANNEL)
    ),
    "levels5_feedback": Gradients(
        "5 levels, feedback, by channel", ("--codec=5-level-feedback", "--scale_by=channel")
    ),
    "levels7_channel": Gradients(*_LEVELS7),
    "levels15_channel": Gradients(
        "15 levels, antithetic, by channel", ("--grad_bits=4", "--clip_factor=5", *_BY_CHANNEL)
    ),
}
_DDP = {
    f"ddp_{kind.lower().replace(' rank ', '').replace(' ', '_')}": Gradients(
        f"DDP, {kind}", (), ddp=kind
    )
    for kind in DDP_KINDS
}

_FEEDBACK = ("--codec=ternary-feedback", "--outer_feedback=0.75")
_LOCAL_STEPS = {
    f"{name}_{steps}": Gradients(f"{title}, H = {steps}", (*flags, f"--local_steps={steps}"))
    for steps in (4, 16, 64)
    for name, title, flags in (
        ("float", "float", ("--grad_bits=32",)),
        ("ternary", "ternary", ("--grad_bits=1", *_CLIPPED)),
        ("feedback", "ternary, feedback 0.75", _FEEDBACK),
        ("levels7", *_LEVELS7),
    )
}
_TWO_WORKERS = Recipe(
    title="cifar10_alexnet on CIFAR-10, 2 workers",
    prefix="codecs",
    dataset="cifar10",
    net="cifar10_alexnet",
    batch_size=128,
    max_steps=20_000,
    flags=("--optimizer=adam", "--weight_decay=0.004"),
    learning_rates=(8e-4, 4e-4, 1.6e-3),
    workers=2,
    trainings=_CODECS | _DDP,
)

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
            "--learning_rate_decay_type=polynomial",
            "--weight_decay=0.0005",
        ),
        learning_rates=(0.01,),
        paper_steps=10_000,
        trainings={
            "float": Gradients("float", ("--grad_bits=32",), paper=99.21),
            "t2": Gradients("ternary, 2 nodes", ("--grad_bits=1", "--num_nodes=2"), paper=99.22),
            "t4": Gradients("ternary, 4 nodes", ("--grad_bits=1", "--num_nodes=4"), paper=99.09),
            "t8": Gradients("ternary, 8 nodes", ("--grad_bits=1", "--num_nodes=8"), paper=99.11),
            "t2_channel": Gradients(
                "ternary, antithetic, by channel, 2 nodes",
                ("--grad_bits=1", "--num_nodes=2", *_ANTITHETIC_BY_CHANNEL),
            ),
            "t4_channel": Gradients(
                "ternary, antithetic, by channel, 4 nodes",
                ("--grad_bits=1", "--num_nodes=4", *_ANTITHETIC_BY_CHANNEL),
            ),
        },
    ),
    "cifar10": Recipe(
        title="cifar10_alexnet on CIFAR-10, 2 nodes",
        prefix="cifar",
        dataset="cifar10",
        net="cifar10_alexnet",
        batch_size=128,
        max_steps=20_000,
        flags=("--optimizer=adam", "--weight_decay=0.004", "--num_nodes=2"),
        learning_rates=(2e-4,),
        paper_steps=300_000,
        trainings={
            "float": Gradients("float", ("--grad_bits=32",), paper=86.56),
            "clip": Gradients("ternary, clip 2.5", ("--grad_bits=1", *_CLIPPED), paper=85.64),
            "none": Gradients("ternary, no clipping", ("--grad_bits=1",)),
        },
    ),
    "codecs": _TWO_WORKERS,
    "local_steps": dataclasses.replace(
        _TWO_WORKERS,
        title=f"{_TWO_WORKERS.title}, local steps",
        prefix="local_steps",
        max_steps=20_480,
        round_steps=64,
        trainings={name: _CODECS[name] for name in ("float", "ternary")} | _LOCAL_STEPS,
    ),
    "resnet": Recipe(
        title="ResNet-20 on CIFAR-10, 2 workers",
        prefix="resnet",
        dataset="cifar10",
        net="resnet_20",
        batch_size=128,
        max_steps=64_000,
        flags=(
            "--optimizer=momentum",
            "--learning_rate_decay_type=polynomial",
            "--weight_decay=0.0001",
        ),
        learning_rates=(0.1, 0.05, 0.2),
        workers=2,
        trainings=_CODECS,
    ),
}
