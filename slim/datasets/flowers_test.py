"""Laws of the flowers: archive and folder are equal, and each kind is set aside in part."""

import collections
import tarfile

import pytest

from slim.conversion import convert
from slim.datasets import flowers
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_pictures

_KINDS = {"daisy": 12, "roses": 5, "tulips": 600}


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flowers")
    write_pictures(folder / "flower_photos", {"daisy": 12, "roses": 5})
    (folder / "flower_photos" / "tulips").mkdir()
    content = (folder / "flower_photos" / "daisy" / "daisy_0.jpg").read_bytes()
    for number in range(600):  # more than five times what is ever set aside
        (folder / "flower_photos" / "tulips" / f"tulips_{number}.jpg").write_bytes(content)
    (folder / "flower_photos" / "LICENSE.txt").write_text("free")
    return folder


def _summary(found):
    return {
        split: [(p.name, p.label, p.read()) for p in pictures.items]
        for split, pictures in found.items()
    }


def test_archive_and_folder_and_its_content_give_the_same(source, tmp_path):
    with tarfile.open(tmp_path / "flower_photos.tgz", "w:gz") as archive:
        archive.add(source / "flower_photos", "flower_photos")
    expected = _summary(flowers.load(str(source)))
    assert _summary(flowers.load(str(source / "flower_photos"))) == expected
    found = flowers.load(str(tmp_path))
    assert _summary(found) == expected
    assert found["train"].class_names == ("background", *_KINDS)


def test_100_of_each_kind_and_at_most_a_fifth_are_for_validation(source):
    found = flowers.load(str(source))
    counts = {split: collections.Counter(p.label for p in found[split].items) for split in found}
    assert counts == {"train": {1: 10, 2: 4, 3: 500}, "validation": {1: 2, 2: 1, 3: 100}}
    names = [p.name for pictures in found.values() for p in pictures.items]
    assert len(set(names)) == len(names) == sum(_KINDS.values())


def test_too_few_of_each_kind_leave_none_for_validation(tmp_path):
    write_pictures(tmp_path, {"daisy": 4, "roses": 4})
    found = flowers.load(str(tmp_path))
    assert [(split, len(pictures.items)) for split, pictures in found.items()] == [("train", 8)]
    convert.convert("flowers", str(tmp_path / "out"), source_dir=str(tmp_path))
    assert get_dataset("flowers", "train", str(tmp_path / "out")).counts == (4, 4)


def test_what_holds_no_flowers_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no pictures in a folder for each class"):
        flowers.load(str(tmp_path))
    archive = tmp_path / "flower_photos.tgz"
    archive.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"flower_photos\.tgz: damaged archive"):
        flowers.load(str(tmp_path))
    with tarfile.open(archive, "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"flower_photos\.tgz: holds no pictures"):
        flowers.load(str(tmp_path))
