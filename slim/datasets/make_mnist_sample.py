"""Makes the sample of MNIST in mnist_sample/ from the complete data set.

python -m slim.datasets.make_mnist_sample FOLDER_WITH_MNIST SAMPLE_FOLDER
"""

from __future__ import annotations

import gzip
import os
import sys

from slim.datasets import mnist

# Every 6th and every 2nd image: the files are sorted by writer, so the sample has all writers.
_STRIDES = {"train": 6, "test": 2}


def make_sample(source_dir: str, sample_dir: str) -> None:
    """Writes four gzipped IDX files with a part of the images in `source_dir`."""
    os.makedirs(sample_dir, exist_ok=True)
    for split, (images, labels) in mnist.load(source_dir).items():
        stride = _STRIDES[split]
        arrays = images[::stride, ..., 0], labels[::stride].astype("uint8")
        for name, array in zip(mnist.FILES[split], arrays, strict=True):
            with open(os.path.join(sample_dir, f"{name}.gz"), "wb") as file:
                file.write(gzip.compress(mnist.format_idx(array), mtime=0))


if __name__ == "__main__":
    make_sample(*sys.argv[1:])
