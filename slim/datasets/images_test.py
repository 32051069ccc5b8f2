"""Laws of your own pictures: each is in one split, classes are named, and faults are too."""

import collections
import os

import pytest
import tensorflow as tf

from slim.conversion import convert
from slim.conversion.options import Options
from slim.datasets import images, picture_files
from slim.datasets.dataset_factory import get_dataset
from slim.testing import with_extraneous_bytes, write_pictures


@pytest.fixture(name="folder")
def _folder(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 20, "dogs": 10, "owls": 3})
    return tmp_path / "pictures"


def _by_label(pictures):
    return collections.Counter(picture.label for picture in pictures.items)


def test_labels_count_from_1_and_0_is_the_background(folder):
    found = images.find(str(folder), validation_share=0)
    assert list(found) == ["train"]
    assert found["train"].class_names == ("background", "cats", "dogs", "owls")
    assert _by_label(found["train"]) == {1: 20, 2: 10, 3: 3}
    for picture in found["train"].items:
        assert picture.name.startswith(found["train"].class_names[picture.label])


def test_the_labels_file_orders_and_chooses_the_classes(folder, tmp_path, capsys):
    (tmp_path / "labels").write_text("owls\ncats\n\n")
    found = images.find(str(folder), None, str(tmp_path / "labels"), 0)
    assert found["train"].class_names == ("background", "owls", "cats")
    assert _by_label(found["train"]) == {1: 3, 2: 20}
    assert "leaves out dogs" in capsys.readouterr().out


def test_a_part_of_each_class_is_set_aside_and_no_picture_is_in_both_splits(folder):
    found = images.find(str(folder), validation_share=0.1)
    assert _by_label(found["validation"]) == {1: 2, 2: 1, 3: 1}
    names = [picture.name for split in found.values() for picture in split.items]
    assert len(names) == len(set(names)) == 33
    again = images.find(str(folder), validation_share=0.1)
    assert [split.items for split in again.values()] == [split.items for split in found.values()]


def test_a_class_with_one_picture_keeps_it_for_training(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 1, "dogs": 2})
    found = images.find(str(tmp_path / "pictures"), validation_share=0.5)
    assert _by_label(found["train"]) == {1: 1, 2: 1}
    assert _by_label(found["validation"]) == {2: 1}


def test_the_order_mixes_the_classes(folder):
    labels = [picture.label for picture in images.find(str(folder))["train"].items]
    assert labels != sorted(labels)


def test_train_and_validation_folders_are_found(tmp_path):
    write_pictures(tmp_path / "train", {"cats": 3, "dogs": 3})
    write_pictures(tmp_path / "validation", {"cats": 2})
    found = images.load(str(tmp_path))
    assert _by_label(found["validation"]) == {1: 2}
    assert _by_label(found["train"]) == {1: 3, 2: 3}


def test_files_that_are_no_pictures_are_left_out(folder):
    for name in ("cats/notes.txt", "cats/.hidden.jpg", "cats/Thumbs.db", "README.md"):
        (folder / name).write_text("no picture")
    (folder / ".cache").mkdir()
    assert _by_label(images.find(str(folder), validation_share=0)["train"]) == {1: 20, 2: 10, 3: 3}


def test_faults_of_the_folders_are_named(folder, tmp_path):
    labels = tmp_path / "labels"
    for text, message in (
        ("cats\nbirds\nbees\n", r"labels names bees, birds: no such folder in .*pictures"),
        ("cats\ncats\n", "labels: names cats more than once"),
        ("\n", "labels: is empty"),
        ("cats\n\ndogs\n", "labels: line 2 is blank; remove it"),
    ):
        labels.write_text(text)
        with pytest.raises(ValueError, match=message):
            images.find(str(folder), None, str(labels))
    labels.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="labels: is not text in UTF-8"):
        images.find(str(folder), None, str(labels))
    with pytest.raises(OSError, match="nowhere"):
        images.find(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no pictures in a folder for each class"):
        images.find(str(tmp_path / "empty"))
    (folder / "eels").mkdir()
    with pytest.raises(ValueError, match="pictures: no pictures of eels"):
        images.find(str(folder))
    (folder / "eels" / "young").mkdir()
    with pytest.raises(ValueError, match=r"eels has folders \(young\)"):
        images.find(str(folder))


def test_a_class_whose_name_does_not_fit_in_a_line_is_refused(tmp_path):
    write_pictures(tmp_path, {"cats\nand dogs": 1})
    with pytest.raises(ValueError, match="cannot be the name of a class"):
        images.find(str(tmp_path))


def _convert(folder, out, **options):
    shards = {"train": 3, "validation": 2}
    splits = images.find(str(folder))
    convert.write(images.INFO, splits, str(out), num_shards=shards, options=Options(**options))


def _examples(dataset):
    for serialized in tf.data.TFRecordDataset(dataset.files).as_numpy_iterator():
        yield tf.train.Example.FromString(serialized).features.feature


def test_records_hold_the_files_and_what_is_known_of_them(folder, tmp_path, capsys):
    _convert(folder, tmp_path / "out")
    sizes = set()
    for split in ("train", "validation"):
        dataset = get_dataset("images", split, str(tmp_path / "out"))
        assert dataset.class_names == ("background", "cats", "dogs", "owls")
        for feature in _examples(dataset):
            name = feature["image/filename"].bytes_list.value[0].decode()
            (text,) = feature["image/class/text"].bytes_list.value
            assert name.startswith(text.decode())
            (encoded,) = feature["image/encoded"].bytes_list.value
            assert encoded == (folder / text.decode() / name).read_bytes()
            (label,) = feature["image/class/label"].int64_list.value
            assert dataset.class_names[label] == text.decode()
            shape = [feature[f"image/{k}"].int64_list.value[0] for k in ("height", "width")]
            assert tuple(shape) == tf.io.decode_jpeg(encoded).shape[:2]
            sizes.add(name)
    assert len(sizes) == 33
    assert capsys.readouterr().out == "Finished writing all 33 images in data set.\n"


def test_a_broken_picture_is_named_or_left_out_and_counted(folder, tmp_path, capsys):
    out = tmp_path / "out"
    (folder / "cats" / "cats_3.jpg").write_bytes(b"no picture")
    os.truncate(folder / "dogs" / "dogs_1.jpg", 400)
    message = r"(cats_3|dogs_1)\.jpg: .*; --skip_broken leaves such pictures out$"
    with pytest.raises(ValueError, match=message):
        _convert(folder, out)
    capsys.readouterr()
    _convert(folder, out, skip_broken=True)
    printed = capsys.readouterr().out
    assert f"Broken images that were left out: 2; {out}/broken.txt names them.\n" in printed
    assert printed.endswith("Finished writing all 31 images in data set.\n")
    cats, dogs = sorted((out / "broken.txt").read_text().splitlines())
    assert cats.startswith(f"{folder}/cats/cats_3.jpg: no picture of a known format")
    assert dogs.startswith(f"{folder}/dogs/dogs_1.jpg: ")
    datasets = [get_dataset("images", split, str(out)) for split in ("train", "validation")]
    assert sum(dataset.num_examples for dataset in datasets) == 31
    for dataset in datasets:
        assert dataset.num_examples == sum(1 for _ in _examples(dataset))


def test_a_jpeg_with_a_warning_is_named_once_and_not_again_when_read(folder, tmp_path, capfd):
    path = folder / "cats" / "cats_3.jpg"
    path.write_bytes(with_extraneous_bytes(path.read_bytes()))
    out = tmp_path / "out"
    _convert(folder, out)
    printed, errors = capfd.readouterr()
    (line,) = [line for line in printed.splitlines() if "extraneous" in line]
    assert line.startswith(f"{path}: Corrupt JPEG data: ") and line.endswith("; encoded anew")
    for split in ("train", "validation"):
        assert sum(1 for _ in _examples(get_dataset("images", split, str(out))))
    assert errors == capfd.readouterr().err == ""


def test_broken_pictures_stay_known_when_a_stopped_conversion_goes_on(folder, tmp_path, capsys):
    out = tmp_path / "out"
    (folder / "cats" / "cats_3.jpg").write_bytes(b"no picture")
    _convert(folder, out, skip_broken=True)
    before = (out / "broken.txt").read_text()
    for path in out.glob("validation-*"):
        path.unlink()
    _convert(folder, out)
    assert (out / "broken.txt").read_text() == before
    assert "all 32 images" in capsys.readouterr().out


def test_the_list_of_broken_pictures_goes_when_none_is_broken(folder, tmp_path):
    out, path = tmp_path / "out", folder / "cats" / "cats_3.jpg"
    whole = path.read_bytes()
    path.write_bytes(b"no picture")
    _convert(folder, out, skip_broken=True)
    path.write_bytes(whole)
    for written in out.glob("*-of-*"):
        written.unlink()
    _convert(folder, out)
    assert not (out / "broken.txt").exists()


def test_a_stop_right_after_a_file_has_its_name_keeps_its_broken_pictures_known(
    folder, tmp_path, monkeypatch
):
    for path in folder.rglob("*.jpg"):
        if path.stem.endswith("1"):
            path.write_bytes(b"")
    replace = os.replace

    def stop_at_the_second(temporary, path):
        replace(temporary, path)
        if path.endswith("train-00001-of-00003"):
            raise KeyboardInterrupt

    _convert(folder, tmp_path / "whole", skip_broken=True)
    with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
        stopping.setattr(os, "replace", stop_at_the_second)
        _convert(folder, tmp_path / "out", skip_broken=True)
    _convert(folder, tmp_path / "out", skip_broken=True)
    listed, expected = ((tmp_path / out / "broken.txt").read_text() for out in ("out", "whole"))
    assert listed == expected and expected.count("\n") == 4


def test_a_folder_of_broken_pictures_only_is_an_error(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 4, "dogs": 4})
    for path in (tmp_path / "pictures").rglob("*.jpg"):
        path.write_bytes(b"")
    splits = images.find(str(tmp_path / "pictures"), validation_share=0)
    with pytest.raises(ValueError, match="none of its record files has an image"):
        convert.write(images.INFO, splits, str(tmp_path / "out"), options=Options(skip_broken=True))


def test_other_classes_are_refused_also_for_another_split(folder, tmp_path):
    out = str(tmp_path / "out")
    train = images.find(str(folder), validation_share=0)
    convert.write(images.INFO, train, out)
    validation = images.find(None, str(folder), None)
    convert.write(images.INFO, validation, out)
    (tmp_path / "labels").write_text("dogs\ncats\nowls\n")
    other = images.find(None, str(folder), str(tmp_path / "labels"))
    remedy = "or convert the train split, too, with --overwrite, or remove its records$"
    with pytest.raises(ValueError, match=rf"train records were made from 4 classes .*{remedy}"):
        convert.write(images.INFO, other, out, options=Options(overwrite=True))
    assert get_dataset("images", "validation", out).num_examples == 33


def test_a_name_that_is_no_utf8_is_stored_with_a_mark(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 1})
    (source,) = (tmp_path / "pictures" / "cats").iterdir()
    os.rename(source, os.fsencode(source.parent) + b"/\xff.jpg")
    convert.write(
        images.INFO,
        images.find(str(tmp_path / "pictures")),
        str(tmp_path / "out"),
        num_shards={"train": 1},
    )
    (feature,) = _examples(get_dataset("images", "train", str(tmp_path / "out")))
    assert feature["image/filename"].bytes_list.value == ["�.jpg".encode()]


def test_few_pictures_fill_fewer_record_files_unless_more_are_asked_for(tmp_path):
    write_pictures(tmp_path / "pictures", {"cats": 3})
    few = {"source_dir": str(tmp_path / "pictures")}
    with pytest.raises(ValueError, match="--validation_shards=2: 1 validation images do not"):
        convert.convert("images", str(tmp_path / "out"), num_shards={"validation": 2}, **few)
    convert.convert("images", str(tmp_path / "out"), **few)
    counts = [get_dataset("images", s, str(tmp_path / "out")).counts for s in images.INFO.splits]
    assert counts == [(1, 1), (1,)]


@pytest.mark.parametrize("suffix", picture_files.SUFFIXES)
def test_files_are_found_by_the_ends_of_their_names_in_any_case(tmp_path, suffix):
    write_pictures(tmp_path, {"cats": 1}, suffix.upper())
    assert _by_label(images.find(str(tmp_path))["train"]) == {1: 1}
