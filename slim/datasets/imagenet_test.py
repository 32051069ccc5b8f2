"""Laws of ImageNet's pictures: archives equal folders, labels and boxes are right, faults named."""

import collections
import functools
import io
import os
import shutil
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from slim.conversion import convert
from slim.datasets import imagenet
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_imagenet

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_SYNSETS = ("n01440764", "n01443537", "n02105855")  # labels 1, 2 and another
_COUNTS = dict(zip(_SYNSETS, (3, 2, 1), strict=True))
_XML = """<annotation><filename>x</filename><size><width>30</width><height>20</height></size>
<object><name>{}</name><bndbox><xmin>3</xmin><ymin>2</ymin><xmax>15</xmax><ymax>20</ymax></bndbox>
</object></annotation>"""


@pytest.fixture(name="archives")
def _archives(tmp_path):
    """A folder with the archives, and one with the folders of their content."""
    folders = tmp_path / "folders"
    write_imagenet(folders, _COUNTS, num_validation=4)
    archives = tmp_path / "archives"
    archives.mkdir()
    for path in folders.glob("*.tar"):
        path.rename(archives / path.name)
    labels = "imagenet_2012_validation_synset_labels.txt"
    (archives / labels).write_text((folders / labels).read_text())
    return archives, folders


def _summary(found):
    return {
        split: [(p.name, p.label, p.synset, p.boxes, p.read()) for p in pictures.items]
        for split, pictures in found.items()
    }


def test_labels_are_those_of_the_synsets(archives):
    found = imagenet.load(str(archives[0]))
    for pictures in found.values():
        assert len(pictures.class_names) == 1001 and pictures.class_names[1] == "tench"
        for picture in pictures.items:
            assert list(imagenet.synsets())[picture.label - 1] == picture.synset
    for picture in found["train"].items:
        assert picture.name.startswith(picture.synset)
    by_name = {picture.name: picture.synset for picture in found["validation"].items}
    assert [by_name[f"ILSVRC2012_val_0000000{n}.JPEG"] for n in (1, 2, 3, 4)] == [
        *_SYNSETS,
        _SYNSETS[0],
    ]


def test_validation_pictures_get_labels_and_boxes_from_their_annotations(archives):
    folder = archives[0]
    (folder / imagenet.VALIDATION_LABELS_FILE).unlink()
    with tarfile.open(folder / imagenet.VALIDATION_BOXES_ARCHIVE, "w:gz") as archive:
        for number in range(1, 5):
            content = _XML.format(_SYNSETS[1]).encode()
            member = tarfile.TarInfo(f"val/ILSVRC2012_val_{number:08d}.xml")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    found = imagenet.load(str(folder))
    assert {p.label for p in found["validation"].items} == {2}
    assert {p.boxes for p in found["validation"].items} == {((0.1, 0.1, 0.5, 1.0),)}


def test_boxes_of_a_csv_file_are_stored_in_the_records(archives, tmp_path, capsys):
    folder = archives[1]
    (folder / imagenet.BOXES_FILE).write_text(
        "n01440764_1.JPEG,0.1000,0.2000,0.5000,0.7500\nn01440764_1.JPEG,0.0,0.0,1.0,1.0\n"
    )
    found = imagenet.load(str(folder))
    counts = "1 of 6 train pictures, 0 of 4 validation pictures"
    assert f"{imagenet.BOXES_FILE}: has boxes of {counts}.\n" in capsys.readouterr().out
    convert.write(
        imagenet.INFO, found, str(tmp_path / "out"), num_shards={"train": 2, "validation": 1}
    )
    boxes = {}
    for serialized in tf.data.TFRecordDataset(
        get_dataset("imagenet", "train", str(tmp_path / "out")).files
    ).as_numpy_iterator():
        feature = tf.train.Example.FromString(serialized).features.feature
        assert feature["image/class/synset"].bytes_list.value[0].decode() in _SYNSETS
        sides = [feature[f"image/object/bbox/{side}"].float_list.value for side in _SIDES]
        boxes[feature["image/filename"].bytes_list.value[0]] = np.array(sides).T
    np.testing.assert_allclose(
        boxes.pop(b"n01440764_1.JPEG"), [[0.1, 0.2, 0.5, 0.75], [0, 0, 1, 1]]
    )
    assert len(boxes) == 5 and all(each.size == 0 for each in boxes.values())


def test_classes_may_be_chosen_and_named_by_files(archives, tmp_path, capsys):
    (tmp_path / "synsets").write_text(f"{_SYNSETS[2]}\n{_SYNSETS[0]}\n")
    (tmp_path / "names").write_text(f"{_SYNSETS[0]}\ta fish\n{_SYNSETS[2]}\ta dog, small\n")
    classes = imagenet.read_classes(str(tmp_path / "synsets"), str(tmp_path / "names"))
    assert classes == {_SYNSETS[2]: "a dog, small", _SYNSETS[0]: "a fish"}
    for place in (archives[1] / "train", archives[0] / imagenet.TRAIN_ARCHIVE):
        found = imagenet.find(str(place), None, classes=classes)["train"]
        assert found.class_names == ("background", "a dog, small", "a fish")
        assert collections.Counter(p.label for p in found.items) == {1: 1, 2: 3}
        assert f"leaves out {_SYNSETS[1]}" in capsys.readouterr().out
    (tmp_path / "names").write_text(f"{_SYNSETS[0]}\ta fish\n")
    with pytest.raises(ValueError, match=f"names: has no name for {_SYNSETS[2]}"):
        imagenet.read_classes(str(tmp_path / "synsets"), str(tmp_path / "names"))


def _cut(path, share):
    os.truncate(path, int(path.stat().st_size * share))


def test_faults_of_the_archives_are_named(archives, tmp_path):
    folder = archives[0]
    labels = folder / imagenet.VALIDATION_LABELS_FILE
    whole = labels.read_text()
    for text, message in (
        (f"{_SYNSETS[0]}\n", "1 lines for 4 pictures"),
        (
            f"{_SYNSETS[0]}\n{_SYNSETS[1]}\n \n{_SYNSETS[2]}\n{_SYNSETS[0]}\n",
            "labels.txt: line 3 is blank; remove it",
        ),
        ("n99999999\n" * 4, r"00000001.JPEG: .*labels.txt says n99999999, which is not a class"),
    ):
        labels.write_text(text)
        with pytest.raises(ValueError, match=message):
            imagenet.load(str(folder))
    labels.unlink()
    hint = f"put {imagenet.VALIDATION_LABELS_FILE} or ILSVRC2012_bbox_val_v3.tgz into {folder}"
    with pytest.raises(ValueError, match=f"of the validation pictures are unknown; {hint}$"):
        imagenet.load(str(folder))
    labels.write_text(whole)
    _cut(folder / imagenet.TRAIN_ARCHIVE, 0.6)
    with pytest.raises(ValueError, match=r"img_train\.tar: damaged archive"):
        imagenet.load(str(folder))
    (folder / imagenet.TRAIN_ARCHIVE).write_bytes(b"no archive" * 100)
    with pytest.raises(ValueError, match=r"img_train\.tar: damaged archive"):
        imagenet.load(str(folder))
    with pytest.raises(ValueError, match=r"holds no archives of pictures such as n01440764\.tar"):
        imagenet.by_synset(str(folder / imagenet.VALIDATION_ARCHIVE), _SYNSETS)
    with pytest.raises(ValueError, match="holds neither ILSVRC2012_img_train"):
        imagenet.load(str(tmp_path))


def test_validation_pictures_that_are_half_sorted_are_refused(archives):
    folder = archives[1] / "validation"
    (folder / _SYNSETS[0]).mkdir()
    first = sorted(path for path in folder.iterdir() if path.is_file())[0]
    first.rename(folder / _SYNSETS[0] / first.name)
    with pytest.raises(
        ValueError, match="beside the folders of classes: finish the run of preprocess_im"
    ):
        imagenet.find(None, str(folder))


def test_a_name_that_leads_out_of_the_archive_writes_nothing_there(tmp_path):
    path = tmp_path / imagenet.VALIDATION_ARCHIVE
    with tarfile.open(path, "w") as archive:
        for name in ("../../escaped.JPEG", "/tmp/escaped.JPEG"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("link.JPEG")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / imagenet.VALIDATION_LABELS_FILE).write_text("n01440764\n" * 2)
    found = imagenet.load(str(tmp_path))["validation"].items
    assert [picture.name for picture in found] == ["escaped.JPEG"] * 2
    with pytest.raises(ValueError, match=r"escaped\.JPEG: an empty file"):
        convert.write(
            imagenet.INFO,
            imagenet.load(str(tmp_path)),
            str(tmp_path / "out"),
            num_shards={"validation": 1},
        )
    assert not (tmp_path.parent.parent / "escaped.JPEG").exists()


def test_sorting_moves_each_picture_once_and_can_be_started_again(archives):
    folder = archives[1] / "validation"
    synsets = (archives[1] / imagenet.VALIDATION_LABELS_FILE).read_text().split()
    (folder / synsets[1]).mkdir()
    (folder / "ILSVRC2012_val_00000002.JPEG").rename(
        folder / synsets[1] / "ILSVRC2012_val_00000002.JPEG"
    )
    expected = _summary(
        imagenet.find(
            None,
            str(archives[0] / "ILSVRC2012_img_val.tar"),
            validation_labels=str(archives[0] / imagenet.VALIDATION_LABELS_FILE),
        )
    )
    sort = functools.partial(
        imagenet.sort_into_folders, str(folder), labels="labels", known=_SYNSETS
    )
    with pytest.raises(ValueError, match="labels: line 4 is 'n99999999', which is no synset of"):
        sort([*synsets[:3], "n99999999"])
    assert sort(synsets) == 3
    assert sort(synsets) == 0
    moved = folder / synsets[0] / "ILSVRC2012_val_00000001.JPEG"
    shutil.copy(moved, folder)
    with pytest.raises(ValueError, match=f"validation: {moved.name} must exist once, not in sever"):
        sort(synsets)
    assert (folder / moved.name).exists()
    (folder / moved.name).unlink()
    found = _summary(imagenet.find(None, str(folder)))
    assert sorted(found["validation"]) == sorted(expected["validation"])
    with pytest.raises(ValueError, match="labels: 3 lines for 4 pictures"):
        sort(synsets[:3])
    with pytest.raises(ValueError, match=f"must lie in the folder {synsets[1]}, not in"):
        sort(synsets[1:2] * 4)
