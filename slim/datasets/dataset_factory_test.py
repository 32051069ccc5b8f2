"""Laws of finding data sets: both layouts are found, and errors name missing files."""

import os
import re

import pytest

from slim.datasets import imagenet, records
from slim.datasets.dataset_factory import DATASETS, get_class_names, get_dataset, get_info


def _write(path, num_records):
    with records.record_writer(str(path)) as writer:
        for _ in range(num_records):
            writer.write(b"record")


def test_single_file_and_shards_are_found(tmp_path):
    _write(tmp_path / "test-cifar10.tfrecord", 3)
    _write(tmp_path / "train-00001-of-00002", 2)
    _write(tmp_path / "train-00000-of-00002", 1)
    test = get_dataset("cifar10", "test", str(tmp_path))
    assert test.counts == (3,) and test.image_shape == (32, 32, 3) and test.num_classes == 10
    train = get_dataset("cifar10", "train", str(tmp_path))
    assert [os.path.basename(path) for path in train.files] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]
    assert train.counts == (1, 2) and train.num_examples == 3


def test_part_of_the_shards_is_a_data_set_with_a_warning(tmp_path, caplog):
    _write(tmp_path / "train-00001-of-00002", 2)
    assert get_dataset("mnist", "train", str(tmp_path)).num_examples == 2
    assert "holds 1 of 2 train shards" in caplog.text


def test_shards_of_two_conversions_are_refused(tmp_path):
    names = ["train-00001-of-00002", "train-00000-of-00001", "train-mnist.tfrecord"]
    names += ["mnist_train.tfrecord", "mnist_train_00000-of-00002.tfrecord"]
    patterns = "mnist_train.tfrecord", "mnist_train_?????-of-00002.tfrecord"
    patterns += "train-?????-of-00001", "train-?????-of-00002", "train-mnist.tfrecord"
    for name in names:
        _write(tmp_path / name, 1)
    message = re.escape(f"{tmp_path} holds {' and '.join(patterns)}; keep one set")
    with pytest.raises(ValueError, match=f"^{message}$"):
        get_dataset("mnist", "train", str(tmp_path))


@pytest.mark.parametrize(
    ("dataset", "split", "names"),
    [
        ("mnist", "test", ["mnist_test.tfrecord"]),
        ("cifar10", "train", ["cifar10_train.tfrecord"]),
        ("flowers", "train", [f"flowers_train_{i:05d}-of-00003.tfrecord" for i in range(3)]),
        ("flowers", "validation", ["flowers_validation_00000-of-00001.tfrecord"]),
    ],
)
def test_files_with_tf_slims_names_are_found(tmp_path, dataset, split, names):
    (tmp_path / "labels.txt").write_text("0:rose\n1:tulip\n")
    other = {"train": "validation", "validation": "train", "test": "train"}[split]
    for name in [*names, *(name.replace(split, other) for name in names)]:
        _write(tmp_path / name, 2)
    found = get_dataset(dataset, split, str(tmp_path))
    assert [os.path.basename(path) for path in found.files] == names
    assert found.num_examples == 2 * len(names)


@pytest.mark.parametrize(
    ("present", "hint"),
    [
        (
            "flowers_train_00000-of-00005.tfrecord",
            "; it holds those of flowers: for these add --dataset_name=flowers",
        ),
        (
            "cars_train_00000-of-00005.tfrecord",
            "; if cars_train_00000-of-00005.tfrecord holds them, rename: "
            "cars_train_00000-of-00005.tfrecord to train-00000-of-00005",
        ),
        (
            "cars-train.tfrecords",
            "; if cars-train.tfrecords holds them, rename: "
            "cars-train.tfrecords to train-images.tfrecord",
        ),
        ("train.csv", ""),
    ],
)
def test_record_files_with_other_names_are_named(tmp_path, present, hint):
    (tmp_path / "labels.txt").write_text("0:rose\n1:tulip\n")
    _write(tmp_path / present, 2)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}{hint}") + "$"):
        get_dataset("images", "train", str(tmp_path))


def test_files_without_records_are_named(tmp_path, caplog):
    for shard, count in enumerate([2, 0, 3, 0]):
        _write(tmp_path / f"train-{shard:05d}-of-00004", count)
    assert get_dataset("mnist", "train", str(tmp_path)).counts == (2, 0, 3, 0)
    names = "train-00001-of-00004, train-00003-of-00004"
    assert caplog.messages == [f"{tmp_path}: there are no records in {names}"]


@pytest.mark.parametrize("folder", [".", "missing"])
def test_missing_files_name_folder_and_converter(tmp_path, folder):
    message = (
        r"holds neither train-mnist.tfrecord nor .* python -m slim.download_and_convert_data "
        r"--dataset_name=mnist --dataset_dir="
    )
    with pytest.raises(ValueError, match=message):
        get_dataset("mnist", "train", str(tmp_path / folder))


def test_unknown_names_say_what_is_allowed(tmp_path):
    with pytest.raises(
        ValueError, match="unknown data set 'minst'; allowed: mnist, fashion_mnist, cifar10"
    ):
        get_info("minst")
    message = "data set mnist has no split 'validation'; allowed: train, test"
    with pytest.raises(ValueError, match=message):
        get_dataset("mnist", "validation", str(tmp_path))


def test_imagenet_has_1000_classes_after_the_background():
    names = get_class_names("imagenet", "nowhere")
    assert len(names) == 1001
    assert (names[0], names[1], names[1000]) == ("background", "tench", "toilet tissue")
    synsets = list(imagenet.synsets())
    assert synsets[0] == "n01440764" and synsets == sorted(synsets)


@pytest.mark.parametrize("name", [name for name, row in DATASETS.items() if not row.class_names])
def test_a_data_set_without_names_of_its_own_reads_them_from_its_folder(tmp_path, name):
    _write(tmp_path / "train-00000-of-00001", 2)
    with pytest.raises(ValueError, match=r"labels.txt is missing"):
        get_dataset(name, "train", str(tmp_path))
    (tmp_path / "labels.txt").write_text("1:rose\n2:tulip\n")
    dataset = get_dataset(name, "train", str(tmp_path))
    assert dataset.class_names == ("background", "rose", "tulip")
    assert dataset.num_classes == 3 and dataset.image_shape == (None, None, 3)


def test_classes_that_were_chosen_from_imagenet_are_those_of_labels_txt(tmp_path):
    _write(tmp_path / "train-00000-of-00001", 2)
    (tmp_path / "labels.txt").write_text("0:background\n1:goldfish\n2:great white shark\n")
    dataset = get_dataset("imagenet", "train", str(tmp_path))
    assert dataset.class_names == ("background", "goldfish", "great white shark")
