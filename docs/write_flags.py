"""Writes docs/flags.md: the flags of all programs, from the tables that the programs parse.

python -m docs.write_flags
"""

from collections.abc import Sequence
from pathlib import Path

from inception.flags.command_line import flags_of

REPO = Path(__file__).parents[1]
PAGE = REPO / "docs" / "flags.md"

# Section -> its programs. Programs of one section have the same flags; only defaults may differ.
SECTIONS = {
    "Training on one machine": (
        "inception.train",
        "inception.mnist_train",
        "inception.cifar10_train",
        "inception.imagenet_train",
        "inception.flowers_train",
    ),
    "Training on several machines": (
        "inception.distributed_train",
        "inception.mnist_distributed_train",
        "inception.cifar10_distributed_train",
        "inception.imagenet_distributed_train",
    ),
    "Sweeps": ("inception.sweep",),
    "Evaluation": (
        "inception.evaluate",
        "inception.mnist_eval",
        "inception.cifar10_eval",
        "inception.imagenet_eval",
        "inception.flowers_eval",
    ),
    "Training with TF-Slim's flags": ("slim.train_image_classifier",),
    "Evaluation with TF-Slim's flags": ("slim.eval_image_classifier",),
    "Converting a data set": ("slim.download_and_convert_data",),
    "Converting your own pictures": ("inception.data.build_image_data",),
    "Downloading and converting flowers": ("inception.download_and_preprocess_flowers",),
    "Converting ImageNet's archives": ("inception.download_and_preprocess_imagenet",),
    "Converting ImageNet's folders": ("inception.data.build_imagenet_data",),
    "Gathering ImageNet's bounding boxes": ("inception.data.process_bounding_boxes",),
    "Sorting ImageNet's validation pictures": (
        "inception.data.preprocess_imagenet_validation_data",
    ),
    "Labelling a picture": ("inception.label_image",),
    "Exporting a trained net": ("inception.export",),
    "Quick start": ("inception.quickstart",),
}

_HEAD = """# Flags

<!-- Written by `python -m docs.write_flags`. Do not edit: change the flag's table instead. -->

Each program prints its own flags with `--help`. This page lists them all. A program refuses unknown
flags, and values that are not allowed, with one line that says what is allowed. It also names each
flag that another one makes ineffective.

`inception.launch` (`scripts/launch_local.sh`) starts several processes of a program on one machine.
Its own flags stand before the number of workers: `--ps=P` starts P parameter servers,
`--max_restarts=N` starts lost processes again, up to N times, after growing pauses,
`--log_dir=DIR` also adds each process' lines to a file, and `--bandwidth=100mbit`, as root, gives
each process a network interface of that bandwidth, to try how the training would go there.
"""


def page() -> str:
    """Returns the whole page."""
    return "\n".join([_HEAD, *(_section(*each) for each in SECTIONS.items())])


def _section(title: str, programs: Sequence[str]) -> str:
    first = flags_of(programs[0])
    names = " and ".join(f"`{program}`" for program in programs)
    blocks = [f"## {title}\n\n{names}.\n"]
    for group, members in first.flags_by_module_dict().items():
        rows = (_row(flag.name, flag.help) for flag in members)
        blocks.append("\n".join([f"| {group} | meaning | default |", "|---|---|---|", *rows, ""]))
    blocks += [_differences(other, programs[0]) for other in programs[1:]]
    return "\n".join(blocks)


def _differences(program: str, first: str) -> str:
    """Lists the defaults of a program that differ from those of the first one in its section."""
    here, there = flags_of(program), flags_of(first)
    differing = [
        f"`--{name}={here[name].default}`" for name in here if here[name].help != there[name].help
    ]
    return f"`{program}` has other defaults: {', '.join(differing)}.\n"


def _row(name: str, help_text: str) -> str:
    meaning, _, default = help_text.replace("|", "\\|").removesuffix("]").rpartition(" [")
    return f"| `--{name}` | {meaning} | {default} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
