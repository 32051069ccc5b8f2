"""Pictures as files."""

import matplotlib.figure

from slim.datasets import files


def save(figure: matplotlib.figure.Figure, path: str) -> None:
    """Writes a PNG file; a file of this name is replaced only by a whole one."""
    with files.replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
