"""Writes trained nets in the formats of Keras and TensorFlow."""

import os
import shutil

from inception.training import trained
from slim.datasets import labels


def export(location: str, output: str, format_name: str, *, averages: bool) -> None:
    """Writes the net of a checkpoint, and labels.txt beside it; replaces what is there.

    Args:
      location: checkpoint, or folder of checkpoints.
      output: a .keras file, or the folder of a SavedModel.
      format_name: "keras" or "savedmodel".
      averages: export the moving averages of the weights.

    Raises:
      ValueError: there is no checkpoint, or it does not say what it was trained for.
      OSError: the output cannot be written; nothing is left behind.
    """
    found = trained.load(location, averages=averages)
    model = found.model()
    folder, name = os.path.split(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{os.getpid()}.{name}")
    try:
        model.save(temporary) if format_name == "keras" else model.export(temporary, verbose=False)
        if os.path.isdir(output):
            shutil.rmtree(output)
        os.replace(temporary, output)
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary)
        elif os.path.exists(temporary):
            os.remove(temporary)
    labels.write_labels(output if os.path.isdir(output) else folder, found.class_names)
    print(
        f"{found.path} is exported to {output}: {found.net}, {found.image_size} pixels, "
        f"{len(found.class_names)} classes, preprocessing {found.preprocessing}."
    )
