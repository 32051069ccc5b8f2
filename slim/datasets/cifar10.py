"""CIFAR-10: 60 000 colour images of ten classes, 32 x 32, in an archive of pickled batches.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zlib
from typing import Any

import numpy as np
from absl import logging

from slim.datasets import files
from slim.datasets.dataset_info import DatasetInfo, Splits, check_split

INFO = DatasetInfo(
    name="cifar10",
    splits=("train", "test"),
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    image_shape=(32, 32, 3),
    net="cifar10_alexnet",
    # Compression would save 29 % of the bytes and double the time to decode an image.
    png_compression=0,
)

_ARCHIVE = "cifar-10-python.tar.gz"
_FOLDER = "cifar-10-batches-py"
_URL = f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}"
_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}
_PICKLED_TYPES = frozenset(
    {
        ("_codecs", "encode"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    }
)


def download(folder: str) -> str:
    """Downloads the archive, checks it, and returns the folder it is in."""
    path = os.path.join(folder, _ARCHIVE)
    files.download(_URL, path, lambda partial: files.digest_of(partial) == _SHA256)
    return folder


def load(folder: str) -> Splits:
    """Reads the batches of an unpacked folder, of the folder that holds it, or of the archive.

    Raises:
      ValueError: the folder has neither batches nor archive, or a batch is missing, damaged or not
        CIFAR-10's.
    """
    place, batches = _read_batches(folder)
    splits = {}
    for split, names in _BATCHES.items():
        missing = [name for name in names if name not in batches]
        if missing:
            raise ValueError(f"{place}: {', '.join(missing)} is missing")
        parts = [_parse_batch(batches[name], os.path.join(place, name)) for name in names]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        splits[split] = images, labels
    return splits


def _read_batches(folder: str) -> tuple[str, dict[str, bytes]]:
    """Returns where the batches are, and the content of each by name."""
    for place in (os.path.join(folder, _FOLDER), folder):
        if any(os.path.isfile(os.path.join(place, name)) for name in sum(_BATCHES.values(), ())):
            return place, _read_folder(place)
    archive = os.path.join(folder, _ARCHIVE)
    if not os.path.isfile(archive):
        raise ValueError(f"{folder} holds neither {_ARCHIVE} nor {_FOLDER}")
    if files.digest_of(archive) != _SHA256:
        logging.warning(
            "%s is not the published archive (its checksum differs); converting it anyway",
            archive,
        )
    return archive, _read_archive(archive)


def _read_folder(place: str) -> dict[str, bytes]:
    batches = {}
    for name in sum(_BATCHES.values(), ()):
        path = os.path.join(place, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                batches[name] = file.read()
    return batches


def _read_archive(path: str) -> dict[str, bytes]:
    try:
        with tarfile.open(path, "r|*") as archive:
            return {
                os.path.basename(member.name): archive.extractfile(member).read()
                for member in archive
                if member.isfile()
            }
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged archive ({error})") from None


def _parse_batch(content: bytes, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [N, 32, 32, 3] and labels int64 [N] of one pickled batch."""
    height, width, channels = INFO.image_shape
    try:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        # Python 2 wrote the keys as bytes, later tools write strings.
        batch = {key if isinstance(key, bytes) else key.encode(): batch[key] for key in batch}
        planes = _exact(batch[b"data"], np.uint8).reshape(-1, channels, height, width)
        labels = _exact(batch[b"labels"], np.int64)
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"{path}: not a batch of CIFAR-10 ({error})") from None
    images = planes.transpose(0, 2, 3, 1)
    check_split(INFO, path, images, labels)
    return images, labels


def _exact(values: Any, dtype: type[np.integer]) -> np.ndarray:
    """Returns an array of integers as `dtype`; ValueError if that would change a value."""
    array = np.asarray(values)
    cast = array.astype(dtype)
    if array.dtype.kind not in "iu" or not np.array_equal(cast, array):
        raise ValueError(f"its {array.dtype} values are not all {np.dtype(dtype)}")
    return cast


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers only: a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED_TYPES:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a batch")
        return super().find_class(module, name)
