"""Writes a trained net for plain Keras or TensorFlow, which load it without this suite.

python -m inception.export --checkpoint_dir=/tmp/flowers_train --format=keras --output=flowers.keras

The model maps preprocessed images, float32 [B, H, W, C], to logits [B, classes]. With
--with_preprocessing it takes pixels, uint8 [B, H, W, C] of any height and width. flowers.labels.txt
names the classes; a SavedModel has labels.txt in its folder.
"""

import dataclasses
import functools
import os

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import BOOLEAN, TEXT, flag, one_of
from inception.training import refusals


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    checkpoint_dir: str = flag(
        "Data", TEXT, None, "folder of checkpoints, or one checkpoint (required)"
    )
    output: str = flag(
        "Data", TEXT, None, "file (keras) or folder (savedmodel) to write (required)"
    )
    format: str = flag("Data", one_of("keras", "savedmodel"), "keras", "keras or savedmodel")
    restore_avg_var: bool | None = flag(
        "Data",
        BOOLEAN,
        None,
        "export the moving averages of the weights; not set = if there are any",
    )
    with_preprocessing: bool = flag(
        "Data",
        BOOLEAN,
        False,
        "the model takes uint8 pixels of images of any size, and preprocesses them itself",
    )
    overwrite: bool = flag("Data", BOOLEAN, False, "replace an output that exists")


def main(values: FlagValues) -> None:
    """Exports the net that the flags name."""
    options = table.read(_Options, values)
    for name in ("checkpoint_dir", "output"):
        if not getattr(options, name):
            raise table.refuse(name, "", "must be given")
    refusals.check_checkpoint(options.checkpoint_dir)
    if options.format == "keras" and not options.output.endswith(".keras"):
        raise table.refuse("output", options.output, "must end in .keras with --format=keras")
    if os.path.exists(options.output):
        _check_replaceable(options)
    with app.quiet_import():
        from inception.training import trained_net
    trained_net.export(
        options.checkpoint_dir,
        options.output,
        options.format,
        averages=options.restore_avg_var,
        with_preprocessing=options.with_preprocessing,
    )


def _check_replaceable(options: _Options) -> None:
    """Raises ValueError unless the output is an earlier export that may be replaced."""
    is_earlier = {"keras": os.path.isfile, "savedmodel": _is_saved_model}[options.format]
    if not is_earlier(options.output):
        raise table.refuse("output", options.output, f"exists, and is no {options.format} export")
    if not options.overwrite:
        raise table.refuse("output", options.output, "exists; --overwrite=True replaces it")


def _is_saved_model(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "saved_model.pb"))


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
