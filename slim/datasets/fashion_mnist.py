"""Fashion-MNIST: 70 000 grey images of clothes, 28 x 28, in four IDX files like MNIST's.

Xiao, Rasul, Vollgraf: Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017.
"""

from __future__ import annotations

import functools
import hashlib
import os

from slim.datasets import files, mnist
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
)

_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_SHA256 = {  # of the gzipped files, as published
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}


def download(folder: str) -> str:
    """Downloads the four files, checks them, and returns the folder they are in."""
    for name, sha256 in _SHA256.items():
        path = os.path.join(folder, f"{name}.gz")
        files.download(f"{_URL}{name}.gz", path, functools.partial(_has, sha256=sha256))
    return folder


def load(folder: str) -> Splits:
    """Reads the four IDX files, plain or gzipped; any plain ones load without a warning.

    Raises:
      ValueError: a file is missing, damaged or not an IDX file, or images and labels do not match.
    """
    return mnist.load_files(folder, INFO, _published_as)


def _published_as(name: str, stored: bytes) -> str:
    if known := mnist.published_as(name, stored):
        return known
    is_own = not mnist.is_zipped(stored) or hashlib.sha256(stored).hexdigest() == _SHA256[name]
    return INFO.name if is_own else ""


def _has(path: str, sha256: str) -> bool:
    return files.sha256_of(path) == sha256
