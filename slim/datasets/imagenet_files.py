"""Finds ImageNet's pictures in folders or in the published archives.

Pictures are read out of an archive where they lie: unpacking would need as much disk again.
"""

from __future__ import annotations

import dataclasses
import os
import tarfile
from collections.abc import Container, Iterable, Mapping, Sequence

from slim.datasets import bounding_boxes, files, picture_files
from slim.datasets.pictures import Box, Picture, listed, printable


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
        raise ValueError(f"{printable(place)} holds no pictures")
    synset_of = _synset_of([picture.name for picture in pictures], labels)
    label_of = {synset: label for label, synset in enumerate(synsets, 1)}
    for picture in pictures:
        synset = synset_of.get(picture.name)
        if synset not in label_of:
            said = f"says {synset}, which is not a class" if synset else "does not know it"
            raise ValueError(f"{picture.place}: {printable(labels)} {said}")
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
      known: the synsets that there are.

    Returns:
      The number of moved pictures.

    Raises:
      ValueError: a synset is unknown, there are more or fewer pictures than synsets, or one lies in
        a wrong folder.
      OSError: a picture cannot be moved.
    """
    for number, synset in enumerate(synsets, 1):
        if synset not in known:
            raise ValueError(
                f"{labels}: line {number} is {synset!r}, which is no synset of the challenge; "
                "nothing was moved"
            )
    where = {
        name: place
        for place in ("", *picture_files.class_folders(folder))
        for name in os.listdir(os.path.join(folder, place))
        if picture_files.is_picture(name)
    }
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


def with_boxes(pictures: Iterable[Picture], boxes: Mapping[str, tuple[Box, ...]]) -> list[Picture]:
    """Returns the pictures with their bounding boxes, which are given by file name."""
    return [
        dataclasses.replace(picture, boxes=boxes[picture.name])
        if picture.name in boxes
        else picture
        for picture in pictures
    ]


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
    if os.path.isdir(labels) or labels.endswith((".tar", ".tgz", ".tar.gz")):
        return {found.picture: found.synset for found in bounding_boxes.annotations(labels)}
    lines = picture_files.read_lines(labels)
    if len(lines) != len(names):
        raise ValueError(
            f"{labels}: {len(lines)} lines for {len(names)} pictures; must have a line for each"
        )
    return dict(zip(names, lines, strict=True))


def _stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]
