"""One's own pictures, a folder for each class; labels.txt beside the records names the classes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slim.datasets import picture_files
from slim.datasets.dataset_info import DatasetInfo
from slim.datasets.picture_files import Picture, Pictures, decoded_name, listed, set_aside, shuffled

INFO = DatasetInfo(
    name="images",
    splits=("train", "validation"),
    class_names=None,
    image_shape=(None, None, 3),
    net="inception_v3",
    converter="inception.data.build_image_data --output_directory={folder}",
    num_shards={"train": 2, "validation": 2},
)

VALIDATION_SHARE = 0.1


def download(folder: str) -> str:
    """Raises ValueError: a user's own pictures are on disk already."""
    raise ValueError(f"{folder}: name the folder that holds your pictures with --source_dir")


def load(folder: str) -> dict[str, Pictures]:
    """Finds the pictures in a folder that has a folder for each class.

    If it holds the folders train and validation instead, then these have the folders of classes.
    """
    train, validation = (os.path.join(folder, split) for split in INFO.splits)
    if os.path.isdir(train) and os.path.isdir(validation):
        return find(train, validation)
    return find(folder)


def find(
    train_folder: str | None,
    validation_folder: str | None = None,
    labels_file: str | None = None,
    validation_share: float = VALIDATION_SHARE,
) -> dict[str, Pictures]:
    """Finds pictures in a folder for each class.

    Args:
      train_folder: has a folder of pictures for each class; None finds no pictures for training.
      validation_folder: has the same for validation; None sets a part of those for training aside.
      labels_file: names a folder in each line, in the order of the labels from 1 on; None takes all
        folders by name. Folders that it does not name are left out.
      validation_share: the part of each class that is set aside, at least one picture if the class
        has two; 0 sets none aside.

    Returns:
      The pictures of each split, in random order. Label 0 is the background.

    Raises:
      ValueError: no pictures, a class without pictures, or a class without a folder.
      OSError: a folder cannot be read.
    """
    first = train_folder or validation_folder
    classes = _classes(first, labels_file)
    names = picture_files.label_names(classes)
    if train_folder is None:
        found = {"validation": _whole(validation_folder, classes)}
    elif validation_folder is None:
        groups = _whole(train_folder, classes)
        counts = [_share(len(group), validation_share) for group in groups]
        train, drawn = set_aside(groups, counts)
        found = {"train": [train], "validation": [drawn]} if drawn else {"train": [train]}
    else:
        validation = picture_files.by_class(validation_folder, classes)
        _log_left_out(validation_folder, classes)
        found = {"train": _whole(train_folder, classes), "validation": validation}
    return {
        split: Pictures(shuffled(picture for group in groups for picture in group), names)
        for split, groups in found.items()
    }


def _classes(folder: str, labels_file: str | None) -> list[str]:
    """Returns the names of the classes, which are those of their folders."""
    present = picture_files.class_folders(folder)
    if labels_file is None:
        return present
    classes = picture_files.read_classes(labels_file)
    if missing := sorted(set(classes).difference(present)):
        raise ValueError(f"{labels_file} names {listed(missing)}: no such folder in {folder}")
    _log_left_out(folder, classes)
    return classes


def _log_left_out(folder: str, classes: Sequence[str]) -> None:
    present = picture_files.class_folders(folder)
    if others := [name for name in present if name not in classes]:
        print(f"{decoded_name(folder)}: leaves out {listed(others)}, which are no classes.")


def _whole(folder: str, classes: Sequence[str]) -> list[list[Picture]]:
    """Returns the pictures of each class, none of which may be without."""
    groups = picture_files.by_class(folder, classes)
    empty = [name for name, group in zip(classes, groups, strict=True) if not group]
    if empty:
        raise ValueError(f"{decoded_name(folder)}: no pictures of {listed(empty)}")
    return groups


def _share(count: int, share: float) -> int:
    """Returns how many pictures of a class are set aside."""
    return min(max(round(count * share), 1), count - 1) if share else 0
