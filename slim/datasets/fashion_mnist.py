"""Fashion-MNIST: 70 000 grey images of clothes, 28 x 28, in four IDX files like MNIST's.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017.
"""

from __future__ import annotations

from slim.datasets import mnist
from slim.datasets.dataset_info import DatasetInfo, Splits

INFO = DatasetInfo(
    name="fashion_mnist",
    splits=("train", "test"),
    class_names=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    image_shape=(28, 28, 1),
    net="lenet",
)

_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"


def download(folder: str) -> str:
    """Downloads the four files, checks them, and returns the folder they are in."""
    return mnist.download_files(folder, _URL, mnist.FASHION_SHA256)


def load(folder: str) -> Splits:
    """Reads the four IDX files, plain or gzipped; any plain ones load without a warning.

    Raises:
      ValueError: a file is missing, damaged or not an IDX file, or images and labels do not match.
    """
    return mnist.load_files(folder, INFO, _published_as)


def _published_as(name: str, stored: bytes) -> str:
    return mnist.published_as(name, stored) or ("" if mnist.is_zipped(stored) else INFO.name)
