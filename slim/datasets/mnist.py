"""MNIST: 70 000 grey images of digits, 28 x 28, in four IDX files.

LeCun, Cortes, Burges: The MNIST database of handwritten digits. Other data sets in the same format
also load, with a warning. Fashion-MNIST is `fashion_mnist`.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

from slim.datasets import files
from slim.datasets.dataset_info import DatasetInfo, Splits, check_split

INFO = DatasetInfo(
    name="mnist",
    splits=("train", "test"),
    class_names=(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
    ),
    image_shape=(28, 28, 1),
    net="lenet",
)

_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FILES = {  # (images, labels) of each split
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_SHA256 = {  # of the files after gunzip
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_SAMPLE_SHA256 = {  # of the files of the sample in mnist_sample/, after gunzip
    "train-images-idx3-ubyte": "438ba099335a695db401b4cc1a9ebb5e26f3f6800536cda63de250fa022053bd",
    "train-labels-idx1-ubyte": "cdc933926617e78fa735e9296757e93f869734837ddb53260df98126675ca7c4",
    "t10k-images-idx3-ubyte": "a51e2d3dd51e45c9b4d3696ea77423669135a941d6f9dd0601b1f25118d2faeb",
    "t10k-labels-idx1-ubyte": "c8d9c1279793466699980474ba7404217cd19185782723424d76af81c28b86c4",
}
FASHION_SHA256 = {  # of Fashion-MNIST's files, which have the same names, after gunzip
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
NAMES = ("mnist", "fashion_mnist")  # data sets in files of these names
_KNOWN = (("mnist", _SHA256), ("mnist", _SAMPLE_SHA256), ("fashion_mnist", FASHION_SHA256))
_IDX_UINT8 = 8  # code of the element type


def download(folder: str) -> str:
    """Downloads the four files, checks them, and returns the folder they are in."""
    return download_files(folder, _URL, _SHA256)


def download_files(folder: str, url: str, sha256: Mapping[str, str]) -> str:
    """Downloads the files of a data set in MNIST's format, and returns the folder.

    Args:
      folder: folder for the files.
      url: address of the folder that has them, gzipped.
      sha256: checksum of each file after gunzip, by its name without .gz.
    """
    for name, digest in sha256.items():
        path = os.path.join(folder, f"{name}.gz")
        files.download(f"{url}{name}.gz", path, functools.partial(_has, sha256=digest))
    return folder


def load(folder: str) -> Splits:
    """Reads the four IDX files, plain or gzipped.

    Raises:
      ValueError: a file is missing, damaged or not an IDX file, or images and labels do not match.
    """
    return load_files(folder, INFO, published_as)


def load_files(folder: str, info: DatasetInfo, published_as: Callable[[str, bytes], str]) -> Splits:
    """Reads the four IDX files of a data set in MNIST's format, plain or gzipped.

    Args:
      folder: folder of the files.
      info: the data set.
      published_as: (name of a file without .gz, its content as stored) -> the data set whose
        published file this is, or "". Files of others are loaded with one warning.

    Raises:
      ValueError: see `load`.
    """
    splits, datasets = {}, {}
    for split, (images_name, labels_name) in FILES.items():
        images_path, images = _load_idx(folder, images_name, 3, published_as, datasets)
        _, labels = _load_idx(folder, labels_name, 1, published_as, datasets)
        images = images[..., np.newaxis]
        check_split(info, images_path, images, labels)
        splits[split] = images, labels.astype(np.int64)
    if others := [name for name, dataset in datasets.items() if dataset != info.name]:
        found = {datasets[name] for name in others}
        hint = "".join(f"; for {name} give --dataset_name={name}" for name in found if name)
        logging.warning(
            "%s: %s not as %s was published (other checksums); converting anyway%s",
            folder,
            f"{', '.join(others)} {'is' if len(others) == 1 else 'are'}",
            info.name,
            hint if len(found) == 1 else "",
        )
    return splits


def parse_idx(content: bytes, path: str, rank: int) -> np.ndarray:
    """Parses an IDX file: 0, 0, type, rank, then `rank` big-endian sizes, then the elements.

    Args:
      content: the file after gunzip.
      path: path of the file, for errors.
      rank: required number of dimensions.

    Returns:
      uint8 array of that rank.

    Raises:
      ValueError: the magic number is wrong, or the size differs from the one in the header.
    """
    magic = bytes([0, 0, _IDX_UINT8, rank])
    if content[:4] != magic:
        raise ValueError(f"{path}: magic number is 0x{content[:4].hex()}, must be 0x{magic.hex()}")
    header_bytes = 4 + 4 * rank
    shape = np.frombuffer(content[4:header_bytes].ljust(4 * rank, b"\0"), ">u4").tolist()
    if len(content) != header_bytes + math.prod(shape):
        raise ValueError(
            f"{path}: {len(content)} bytes, must be {header_bytes + math.prod(shape)} for {shape}"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def format_idx(array: np.ndarray) -> bytes:
    """Returns a uint8 array as the content of an IDX file."""
    magic = bytes([0, 0, _IDX_UINT8, array.ndim])
    return magic + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def _load_idx(
    folder: str,
    name: str,
    rank: int,
    published_as: Callable[[str, bytes], str],
    datasets: dict[str, str],
) -> tuple[str, np.ndarray]:
    """Returns a file's path and array; sets in `datasets` the data set that published it."""
    if (path := _path(folder, name)) is None:
        raise ValueError(f"{folder} holds neither {name} nor {name}.gz")
    with open(path, "rb") as file:
        stored = file.read()
    array = parse_idx(_unzipped(stored, path), path, rank)
    datasets[os.path.basename(path)] = published_as(name, stored)
    return path, array


def _path(folder: str, name: str) -> str | None:
    candidates = [os.path.join(folder, name + suffix) for suffix in ("", ".gz")]
    return next(filter(os.path.isfile, candidates), None)


def is_zipped(stored: bytes) -> bool:
    """Returns whether the content of a file is gzipped."""
    return stored[:2] == b"\x1f\x8b"


def _unzipped(stored: bytes, path: str) -> bytes:
    """Returns the content of a plain or gzipped file; ValueError names a damaged one."""
    if not is_zipped(stored):
        return stored
    try:
        return gzip.decompress(stored)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error})") from None


def published_as(name: str, stored: bytes) -> str:
    """Returns the data set whose file of this name has this content; "" if none is known."""
    digest = hashlib.sha256(_unzipped(stored, name)).hexdigest()
    return next((dataset for dataset, known in _KNOWN if known[name] == digest), "")


def find_published(folder: str) -> str:
    """Returns the data set whose four published files a folder holds; "" if none is known."""
    found = set()
    for name in sum(FILES.values(), ()):
        if (path := _path(folder, name)) is None:
            return ""
        with open(path, "rb") as file:
            stored = file.read()
        try:
            found.add(published_as(name, stored))
        except ValueError:  # it is damaged
            return ""
    return found.pop() if len(found) == 1 else ""


def _has(path: str, sha256: str) -> bool:
    with open(path, "rb") as file:
        stored = file.read()
    try:
        return hashlib.sha256(_unzipped(stored, path)).hexdigest() == sha256
    except ValueError:
        return False
