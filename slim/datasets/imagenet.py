"""ImageNet's classification task of 2012 (ILSVRC): 1.28 million photographs of 1000 classes.

Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge, IJCV 2015.
"""

from __future__ import annotations

import functools
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence

from slim.datasets import bounding_boxes, files, imagenet_files, picture_files
from slim.datasets.dataset_info import BACKGROUND, DatasetInfo
from slim.datasets.pictures import Box, Picture, Pictures, listed, shuffled

_SYNSETS_FILE = os.path.join(os.path.dirname(__file__), "imagenet_synsets.txt")

TRAIN_ARCHIVE = "ILSVRC2012_img_train.tar"
VALIDATION_ARCHIVE = "ILSVRC2012_img_val.tar"
TRAIN_BOXES_ARCHIVE = "ILSVRC2012_bbox_train_v2.tar.gz"
VALIDATION_BOXES_ARCHIVE = "ILSVRC2012_bbox_val_v3.tgz"
VALIDATION_LABELS_FILE = "imagenet_2012_validation_synset_labels.txt"
BOXES_FILE = "imagenet_2012_bounding_boxes.csv"

_MD5 = {  # as published beside the archives
    TRAIN_ARCHIVE: "1d675b47d978889d74fa0da5fadfb00e",
    VALIDATION_ARCHIVE: "29b22e2961454d5413ddabcf34fc5622",
}


@functools.cache
def synsets() -> dict[str, str]:
    """Returns the name of each class by its WordNet id, in the order of the labels from 1 on."""
    with open(_SYNSETS_FILE, encoding="utf-8") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


class _ClassNames(Sequence[str]):
    """The names by label, read when they are first needed."""

    def __len__(self) -> int:
        return 1 + len(synsets())

    def __getitem__(self, label: int) -> str:
        return (BACKGROUND, *synsets().values())[label]


INFO = DatasetInfo(
    name="imagenet",
    splits=("train", "validation"),
    class_names=_ClassNames(),
    image_shape=(None, None, 3),
    net="alexnet",
    converter="inception.download_and_preprocess_imagenet {folder}",
    num_shards={"train": 1024, "validation": 128},
)


def download(folder: str) -> str:
    """Returns the folder, in which the archives must be: they need an account at image-net.org."""
    return folder


def download_archives(urls: Mapping[str, str], folder: str) -> str:
    """Downloads archives, given by their addresses under their names; returns the folder.

    See `files.download`.
    """
    for name, url in urls.items():
        is_whole = functools.partial(_is_whole, md5=_MD5.get(name))
        files.download(url, os.path.join(folder, name), is_whole)
    return folder


def load(folder: str) -> dict[str, Pictures]:
    """Finds the pictures in the archives as they are published, or in the folders of their content.

    Args:
      folder: holds ILSVRC2012_img_train.tar or train/ (a folder for each synset), and
        ILSVRC2012_img_val.tar, validation/ or val/ (flat, or a folder for each synset). Flat
        pictures need imagenet_2012_validation_synset_labels.txt or ILSVRC2012_bbox_val_v3.tgz
        beside them. The boxes are in imagenet_2012_bounding_boxes.csv, or in
        ILSVRC2012_bbox_train_v2.tar.gz and ILSVRC2012_bbox_val_v3.tgz; they may be missing.

    Raises:
      ValueError: there is neither training nor validation, or a file is damaged.
      OSError: a file cannot be read.
    """
    train = _first(folder, TRAIN_ARCHIVE, "train")
    validation = _first(folder, VALIDATION_ARCHIVE, "validation", "val")
    if not (train or validation):
        raise ValueError(
            f"{folder} holds neither {TRAIN_ARCHIVE} nor {VALIDATION_ARCHIVE}, nor a folder train "
            "or validation; get the archives with your account at image-net.org"
        )
    csv = _first(folder, BOXES_FILE)
    archives = [_first(folder, TRAIN_BOXES_ARCHIVE), _first(folder, VALIDATION_BOXES_ARCHIVE)]
    return find(
        train,
        validation,
        boxes=[csv] if csv else [path for path in archives if path],
        validation_labels=_first(folder, VALIDATION_LABELS_FILE, VALIDATION_BOXES_ARCHIVE),
        labels_hint=f"put {VALIDATION_LABELS_FILE} or {VALIDATION_BOXES_ARCHIVE} into {folder}",
    )


def find(
    train: str | None,
    validation: str | None,
    *,
    classes: Mapping[str, str] | None = None,
    boxes: Iterable[str] = (),
    validation_labels: str | None = None,
    labels_hint: str = "say them with validation_labels",
) -> dict[str, Pictures]:
    """Finds pictures; they stay as they are stored, whatever their EXIF orientation says.

    Args:
      train: folder with a folder for each synset, or archive of an archive for each; None = none.
      validation: the same, or a flat folder or archive; None = none.
      classes: name of each class by synset, in the order of the labels; None = `synsets()`.
      boxes: CSV files, and folders or archives of annotations.
      validation_labels: what says the synsets of flat pictures, see `imagenet_files.flat`.
      labels_hint: how the user can give it, for the error where it is missing.

    Returns:
      The pictures of each split, in random order.

    Raises:
      ValueError: pictures or labels are missing, or a file is damaged.
      OSError: a file cannot be read.
    """
    classes = synsets() if classes is None else classes
    found = {}
    if train:
        found["train"] = imagenet_files.by_synset(train, list(classes))
    if validation:
        found["validation"] = _validation(validation, list(classes), validation_labels, labels_hint)
    box_of: dict[str, tuple[Box, ...]] = {}
    for source in boxes:
        is_csv = source.endswith(".csv")
        box_of |= (bounding_boxes.read_csv if is_csv else bounding_boxes.read_boxes)(source)
    names = picture_files.label_names(classes.values())
    return {
        split: Pictures(
            shuffled(imagenet_files.with_boxes(pictures, box_of)), names, is_upright=False
        )
        for split, pictures in found.items()
    }


def read_classes(synsets_file: str | None, metadata_file: str | None) -> dict[str, str]:
    """Returns the name of each class by synset.

    Args:
      synsets_file: a synset in each line, in the order of the labels from 1 on; None = those of
        `synsets()`.
      metadata_file: a synset, a tab and its name in each line; None = `synsets()`.

    Raises:
      ValueError: a synset has no name.
      OSError: a file cannot be read.
    """
    chosen, names = list(synsets()), synsets()
    if synsets_file is not None:
        chosen = picture_files.read_classes(synsets_file)
    if metadata_file is not None:
        parts = (line.partition("\t") for line in picture_files.read_lines(metadata_file))
        names = {synset.strip(): name.strip() for synset, _, name in parts}
    if nameless := [synset for synset in chosen if not names.get(synset)]:
        raise ValueError(f"{metadata_file or _SYNSETS_FILE}: has no name for {listed(nameless)}")
    return {synset: names[synset] for synset in chosen}


def _validation(
    place: str, classes: Sequence[str], labels: str | None, labels_hint: str
) -> list[Picture]:
    if os.path.isdir(place) and picture_files.class_folders(place):
        if beside := picture_files.pictures_beside(place):
            raise ValueError(
                f"{place} has {listed(beside)} beside the folders of classes: end what "
                "preprocess_imagenet_validation_data began"
            )
        return imagenet_files.by_synset(place, classes)
    if labels is None:
        raise ValueError(
            f"{place}: the classes of the validation pictures are unknown; {labels_hint}"
        )
    return imagenet_files.flat(place, classes, labels)


def _first(folder: str, *names: str) -> str | None:
    paths = (os.path.join(folder, name) for name in names)
    return next(filter(os.path.exists, paths), None)


def _is_whole(path: str, md5: str | None) -> bool:
    return tarfile.is_tarfile(path) if md5 is None else files.digest_of(path, "md5") == md5
