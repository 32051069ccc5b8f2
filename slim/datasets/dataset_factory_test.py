"""Laws of finding data sets: both layouts are found, and errors name missing files."""

import os

import pytest

from slim.datasets import records
from slim.datasets.dataset_factory import get_dataset, get_info


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
    assert "holds 1 of 00002 train shards" in caplog.text


def test_shards_of_two_conversions_are_refused(tmp_path):
    _write(tmp_path / "train-00000-of-00001", 1)
    _write(tmp_path / "train-00001-of-00002", 1)
    with pytest.raises(ValueError, match="shards of 00001 and of 00002; keep one set"):
        get_dataset("mnist", "train", str(tmp_path))


@pytest.mark.parametrize("folder", [".", "missing"])
def test_missing_files_name_folder_and_converter(tmp_path, folder):
    message = (
        r"holds neither train-mnist.tfrecord nor .* python -m slim.download_and_convert_data "
        r"--dataset_name=mnist --dataset_dir="
    )
    with pytest.raises(ValueError, match=message):
        get_dataset("mnist", "train", str(tmp_path / folder))


def test_unknown_names_say_what_is_allowed(tmp_path):
    with pytest.raises(ValueError, match="unknown data set 'minst'; allowed: mnist, cifar10"):
        get_info("minst")
    message = "data set mnist has no split 'validation'; allowed: train, test"
    with pytest.raises(ValueError, match=message):
        get_dataset("mnist", "validation", str(tmp_path))


def test_truncated_file_is_named(tmp_path):
    _write(tmp_path / "train-mnist.tfrecord", 2)
    os.truncate(tmp_path / "train-mnist.tfrecord", 30)
    with pytest.raises(ValueError, match=r"train-mnist.tfrecord: record \d at byte \d+ is damaged"):
        get_dataset("mnist", "train", str(tmp_path))
