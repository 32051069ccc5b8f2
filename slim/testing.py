"""Small data sets in the formats of the real ones."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from slim.datasets import mnist


def write_mnist(
    folder: Path, num_images: int = 12, suffix: str = ""
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes MNIST's four IDX files with random images.

    Args:
      folder: folder for the files.
      num_images: images in each split.
      suffix: "" or a suffix of the files' names, e.g. ".gz"; with a suffix they are compressed.

    Returns:
      Images uint8 [num_images, 28, 28, 1] and labels uint8 [num_images] of each split.
    """
    rng = np.random.default_rng(0)
    splits = {}
    for split, names in mnist.FILES.items():
        images = rng.integers(0, 256, (num_images, 28, 28), np.uint8)
        labels = (np.arange(num_images) % 10).astype(np.uint8)
        for name, array in zip(names, (images, labels), strict=True):
            content = mnist.format_idx(array)
            (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
        splits[split] = images[..., np.newaxis], labels
    return splits
