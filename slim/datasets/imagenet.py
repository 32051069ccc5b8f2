"""ImageNet's classification task of 2012 (ILSVRC): 1.28 million photographs of 1000 classes.

Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge, IJCV 2015.

Pictures are read from the archives themselves: unpacking would need as much disk again.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tarfile
from collections.abc import Container, Iterable, Mapping, Sequence

from slim.datasets import bounding_boxes, files, picture_files
from slim.datasets.dataset_info import DatasetInfo
from slim.datasets.picture_files import (
    BACKGROUND,
    Box,
    Picture,
    Pictures,
    decoded_name,
    listed,
    shuffled,
)

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
    """Downloads archives into a folder; returns the folder. See `files.download`.

    Args:
      urls: address of each archive, by its file name.
      folder: folder for the archives.
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
    labels_hint: str = "give them with validation_labels",
) -> dict[str, Pictures]:
    """Finds pictures; they stay as they are stored, whatever their EXIF orientation says.

    Args:
      train: folder with a folder for each synset, or archive of an archive for each; None = none.
      validation: the same, or a flat folder or archive; None = none.
      classes: name of each class by synset, in the order of the labels; None = `synsets()`.
      boxes: CSV files, and folders or archives of annotations.
      validation_labels: what says the synsets of flat pictures, see `flat`.
      labels_hint: how the user can give them, for the error where they are missing.

    Returns:
      The pictures of each split, in random order.

    Raises:
      ValueError: pictures or labels are missing, or a file is damaged.
      OSError: a file cannot be read.
    """
    classes = synsets() if classes is None else classes
    found = {}
    if train:
        found["train"] = by_synset(train, list(classes))
    if validation:
        found["validation"] = _validation(validation, list(classes), validation_labels, labels_hint)
    box_of: dict[str, tuple[Box, ...]] = {}
    for source in boxes:
        own = bounding_boxes.read(source)
        _log_boxes(found, own, source)
        box_of |= own
    names = picture_files.label_names(classes.values())
    return {
        split: Pictures(shuffled(_with_boxes(pictures, box_of)), names, is_upright=False)
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
    if has_synset_folders(place):
        if beside := picture_files.pictures_beside(place):
            raise ValueError(
                f"{place} has {listed(beside)} beside the folders of classes: finish the run of "
                "preprocess_imagenet_validation_data"
            )
        return by_synset(place, classes)
    if labels is None:
        raise ValueError(
            f"{place}: the classes of the validation pictures are unknown; {labels_hint}"
        )
    return flat(place, classes, labels)


def has_synset_folders(place: str) -> bool:
    """Returns whether pictures lie in a folder for each synset, not side by side."""
    return os.path.isdir(place) and bool(picture_files.class_folders(place))


def _first(folder: str, *names: str) -> str | None:
    paths = (os.path.join(folder, name) for name in names)
    return next(filter(os.path.exists, paths), None)


def _is_whole(path: str, md5: str | None) -> bool:
    return tarfile.is_tarfile(path) if md5 is None else files.digest_of(path, "md5") == md5


def by_synset(place: str, synsets: Sequence[str]) -> list[Picture]:
    """Returns the pictures of a folder with a folder for each synset, or of the archive of these.

    Args:
      place: the folder, or the archive, which holds an archive for each synset.
      synsets: the classes, from label 1 on. Others are left out, and a line says so.

    Raises:
      ValueError: there are no pictures, or the archive is damaged.
      OSError: a file cannot be read.
    """
    if os.path.isdir(place):
        groups = picture_files.by_class(place, synsets, is_synset=True)
        present = picture_files.class_folders(place)
    else:
        inner = {_stem(member.name): member for member in picture_files.members(place)}
        groups, present = _in_archives(place, synsets, inner), list(inner)
    if others := sorted(set(present).difference(synsets)):
        print(f"{place}: leaves out {listed(others)}, which are no synsets of the classes.")
    if empty := [synset for synset, group in zip(synsets, groups, strict=True) if not group]:
        print(f"{place}: has no pictures of {len(empty)} classes ({listed(empty)}).")
    return [picture for group in groups for picture in group]


def flat(place: str, synsets: Sequence[str], labels: str) -> list[Picture]:
    """Returns the pictures that lie side by side in a folder or archive, as validation's do.

    Args:
      place: the folder or the archive.
      synsets: the classes, from label 1 on.
      labels: says the synset of each picture: a text file with a line for each, in the order of
        their names, or a folder or archive of annotations.

    Raises:
      ValueError: there are no pictures, or a picture's synset is unknown.
      OSError: a file cannot be read.
    """
    pictures = sorted(_flat(place), key=lambda picture: picture.name)
    if not pictures:
        raise ValueError(f"{decoded_name(place)} holds no pictures")
    synset_of = _synset_of([picture.name for picture in pictures], labels)
    label_of = {synset: label for label, synset in enumerate(synsets, 1)}
    for picture in pictures:
        synset = synset_of.get(picture.name)
        if synset not in label_of:
            said = f"says {synset}, which is not a class" if synset else "does not know it"
            raise ValueError(f"{picture.place}: {decoded_name(labels)} {said}")
    return [
        dataclasses.replace(p, label=label_of[synset_of[p.name]], synset=synset_of[p.name])
        for p in pictures
    ]


def sort_into_folders(
    folder: str, synsets: Sequence[str], labels: str, known: Container[str]
) -> int:
    """Moves the pictures of a flat folder into a folder for each synset.

    Args:
      folder: has the pictures; those that an earlier run moved count too.
      synsets: of each picture, in the order of their names.
      labels: where the synsets are from, for errors.
      known: the synsets of the challenge.

    Returns:
      The number of moved pictures.

    Raises:
      ValueError: a synset is unknown, there are more or fewer pictures than synsets, or one lies in
        a wrong folder or in several.
      OSError: a picture cannot be moved.
    """
    for number, synset in enumerate(synsets, 1):
        if synset not in known:
            raise ValueError(
                f"{labels}: line {number} is {synset!r}, which is no synset of the challenge; "
                "nothing was moved"
            )
    where: dict[str, str] = {}
    repeated = []
    for place in ("", *picture_files.class_folders(folder)):
        for name in filter(picture_files.is_picture, os.listdir(os.path.join(folder, place))):
            if name in where:
                repeated.append(name)
            where[name] = place
    if repeated:
        raise ValueError(
            f"{folder}: {listed(sorted(set(repeated)))} must exist once, not in several folders; "
            "nothing was moved"
        )
    if len(where) != len(synsets):
        raise ValueError(
            f"{labels}: {len(synsets)} lines for {len(where)} pictures in {folder}; must have a "
            "line for each"
        )
    target = dict(zip(sorted(where), synsets, strict=True))
    if wrong := sorted(name for name in where if where[name] not in ("", target[name])):
        raise ValueError(
            f"{folder}: {listed(wrong)} must lie in the folder {target[wrong[0]]}, not in "
            f"{where[wrong[0]]}"
        )
    flat_names = [name for name in target if not where[name]]
    for name in flat_names:
        os.makedirs(os.path.join(folder, target[name]), exist_ok=True)
        os.rename(os.path.join(folder, name), os.path.join(folder, target[name], name))
    return len(flat_names)


def _with_boxes(pictures: Iterable[Picture], boxes: Mapping[str, tuple[Box, ...]]) -> list[Picture]:
    """Returns the pictures with their bounding boxes, which are given by file name."""
    return [
        dataclasses.replace(picture, boxes=boxes[picture.name])
        if picture.name in boxes
        else picture
        for picture in pictures
    ]


def _log_boxes(found: Mapping[str, Sequence[Picture]], boxes: Container[str], source: str) -> None:
    """Prints how many pictures have boxes, which shows whether the boxes are of these pictures."""
    counts = ", ".join(
        f"{sum(picture.name in boxes for picture in pictures)} of {len(pictures)} {split} pictures"
        for split, pictures in found.items()
    )
    print(f"{source}: has boxes of {counts}.")


def _in_archives(
    path: str, synsets: Sequence[str], inner: Mapping[str, tarfile.TarInfo]
) -> list[list[Picture]]:
    """Returns the pictures of each synset, from the archives in an archive."""
    groups: list[list[Picture]] = []
    with files.progress_bar() as bar:
        for synset in bar.track(synsets, description=f"listing {os.path.basename(path)}"):
            archive = inner.get(synset)
            found = (
                picture_files.members(path, archive.offset_data, archive.size) if archive else ()
            )
            groups.append(_pictures(path, found, len(groups) + 1, synset))
    if not any(groups):
        raise ValueError(f"{path} holds no archives of pictures such as {synsets[0]}.tar")
    return groups


def _pictures(
    path: str, found: Iterable[tarfile.TarInfo], label: int = 0, synset: str = ""
) -> list[Picture]:
    """Returns those members of an archive that are pictures."""
    return [
        Picture(path, label, synset, member=m.name, offset=m.offset_data, size=m.size)
        for m in found
        if picture_files.is_picture(m.name)
    ]


def _flat(place: str) -> list[Picture]:
    if os.path.isdir(place):
        return picture_files.in_folder(place, label=0)
    return _pictures(place, picture_files.members(place))


def _synset_of(names: Sequence[str], labels: str) -> dict[str, str]:
    """Returns the synset of each picture by name, from a list or from annotations."""
    if bounding_boxes.holds_annotations(labels):
        return {found.picture: found.synset for found in bounding_boxes.annotations(labels)}
    lines = picture_files.read_lines(labels)
    if len(lines) != len(names):
        raise ValueError(
            f"{labels}: {len(lines)} lines for {len(names)} pictures; must have a line for each"
        )
    return dict(zip(names, lines, strict=True))


def _stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]
