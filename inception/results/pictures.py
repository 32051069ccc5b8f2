"""Pictures as files."""

import matplotlib.figure

from slim.datasets import files


def save(figure: matplotlib.figure.Figure, path: str) -> None:
    """Writes a PNG file. It replaces an existing file only when it is complete."""
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
