"""Records of other writers are read or named; the other tests write such records themselves."""

import pathlib
import re

import pytest
import tensorflow as tf

from slim import input_pipeline
from slim.datasets import records
from slim.datasets.dataset_factory import get_dataset
from slim.preprocessing.preprocessing_factory import get_preprocessing

_FOLDER = pathlib.Path(__file__).parents[2] / "shared" / "data" / "foreign_records"

pytestmark = pytest.mark.skipif(not _FOLDER.is_dir(), reason=f"no records in {_FOLDER}")


def _read(folder, name, split):
    dataset = get_dataset(name, split, str(_FOLDER / folder))
    preprocessing = get_preprocessing("vgg", is_training=False)
    options = {"image_size": 8, "batch_size": 4}
    batches = input_pipeline.evaluation_batches(dataset, preprocessing, **options)
    with records.naming_damage(dataset.files, range(dataset.num_classes), dataset.image_shape):
        for _, labels in batches:
            tf.debugging.Assert(tf.reduce_all(labels < dataset.num_classes), [labels])
    return dataset.counts


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("gzip", "train-00000-of-00002 is compressed (GZIP)"),
        ("labelbytes", "image/class/label is of type bytes, must be int64"),
        ("labelfloat", "image/class/label is of type float, must be int64"),
        ("labeltwo", "image/class/label has 2 values, must have one"),
        ("labelhuge", "has label 4294967297; with labels_offset 0 it must be 0 to 3"),
    ],
)
def test_a_fault_is_named(folder, fault):
    with pytest.raises(ValueError, match=re.escape(fault)):
        _read(folder, "images", "train")


@pytest.mark.parametrize(
    ("folder", "name", "split", "counts"),
    [
        ("raw_lower", "images", "train", (12, 12)),
        ("raw_lower", "images", "validation", (9,)),
        ("slim_mnist", "mnist", "train", (40,)),
        ("slim_mnist", "mnist", "test", (20,)),
        ("u7_100_1", "mnist", "train", (7, 100, 1)),
    ],
)
def test_raw_pixels_and_tf_slims_files_are_read(folder, name, split, counts, caplog):
    assert _read(folder, name, split) == counts
    assert not caplog.messages


@pytest.mark.parametrize(
    ("folder", "name", "counts", "empty"),
    [
        ("oneempty", "images", (12, 0), "train-00001-of-00002"),
        ("u0", "mnist", (7, 0, 9), "train-00001-of-00003"),
    ],
)
def test_an_empty_file_is_named(folder, name, counts, empty, caplog):
    assert _read(folder, name, "train") == counts
    assert caplog.messages == [f"{_FOLDER / folder}: there are no records in {empty}"]
