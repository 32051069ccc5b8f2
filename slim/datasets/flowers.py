"""Flowers: 3670 photographs of five kinds; labels.txt beside the records names them."""

from __future__ import annotations

import itertools
import os

from slim.datasets import files, picture_files
from slim.datasets.dataset_info import DatasetInfo
from slim.datasets.picture_files import Picture, Pictures, set_aside

INFO = DatasetInfo(
    name="flowers",
    splits=("train", "validation"),
    class_names=None,
    image_shape=(None, None, 3),
    net="inception_v3",
    converter="inception.download_and_preprocess_flowers {folder}",
    num_shards={"train": 2, "validation": 2},
)

_FOLDER = "flower_photos"
_ARCHIVE = f"{_FOLDER}.tgz"
_URL = f"https://storage.googleapis.com/download.tensorflow.org/example_images/{_ARCHIVE}"
_SHA256 = "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"

# Of each kind, so that 500 of the 3670 are for validation, as TensorFlow's Inception had it.
_VALIDATION = 100
_LARGEST_SHARE = 5  # of a smaller collection at most a fifth is for validation


def download(folder: str) -> str:
    """Downloads the archive (218 MB), checks it, and returns the folder it is in."""
    path = os.path.join(folder, _ARCHIVE)
    files.download(_URL, path, lambda partial: files.digest_of(partial) == _SHA256)
    return folder


def load(folder: str) -> dict[str, Pictures]:
    """Finds the pictures in flower_photos.tgz or in the unpacked folder flower_photos.

    Where no class has five pictures, there is no split for validation.

    Args:
      folder: holds one of the two, or is flower_photos itself.

    Raises:
      ValueError: it holds neither, or the archive is damaged.
      OSError: a file cannot be read.
    """
    archive, unpacked = os.path.join(folder, _ARCHIVE), os.path.join(folder, _FOLDER)
    if os.path.isdir(unpacked) or not os.path.isfile(archive):
        place = unpacked if os.path.isdir(unpacked) else folder
        classes = picture_files.class_folders(place)
        groups = picture_files.by_class(place, classes)
    else:
        classes, groups = _read_archive(archive)
    counts = [min(_VALIDATION, len(group) // _LARGEST_SHARE) for group in groups]
    names = picture_files.label_names(classes)
    splits = zip(INFO.splits, set_aside(groups, counts), strict=True)
    return {split: Pictures(items, names) for split, items in splits if items}


def _read_archive(path: str) -> tuple[list[str], list[list[Picture]]]:
    """Returns the classes and the pictures of each; the archive fits into memory."""
    kind = lambda member: os.path.basename(os.path.dirname(member[0]))
    found = sorted(picture_files.contents(path, picture_files.SUFFIXES), key=lambda m: m[0])
    if not found:
        raise ValueError(f"{path}: holds no pictures")
    classes, groups = [], []
    for label, (name, members) in enumerate(itertools.groupby(found, kind), 1):
        classes.append(name)
        groups.append([Picture(path, label, member=m, content=c) for m, c in members])
    return classes, groups
