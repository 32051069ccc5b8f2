"""Names what a picture shows, with a trained net.

python -m inception.label_image --checkpoint_dir=/tmp/flowers_train --image=rose.jpg
"""

import dataclasses
import functools
import os

from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.table import BOOLEAN, TEXT, at_least, flag
from inception.training import refusals


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(table.Checked):
    checkpoint_dir: str = flag(
        "Data", TEXT, None, "folder of checkpoints, or one checkpoint (required)"
    )
    image: str = flag("Data", TEXT, None, "picture file of any common kind (required)")
    top_k: int = flag("Data", at_least(1), 5, "number of classes to print", "classes")
    restore_avg_var: bool | None = flag(
        "Data", BOOLEAN, None, "use the moving averages of the weights; not set = if there are any"
    )


def main(values: FlagValues) -> None:
    """Labels the picture that the flags name."""
    options = table.read(_Options, values)
    for name in ("checkpoint_dir", "image"):
        if not getattr(options, name):
            raise table.refuse(name, "", "must be given")
    refusals.check_checkpoint(options.checkpoint_dir)
    if not os.path.isfile(options.image):
        raise table.refuse("image", options.image, "there is no such file")
    with app.quiet_import():
        from inception.training import trained_net
    for name, probability in trained_net.label(
        options.checkpoint_dir, options.image, options.top_k, averages=options.restore_avg_var
    ):
        print(f"{probability:.4f} {name}")


if __name__ == "__main__":
    app.run(main, functools.partial(table.define, _Options))
