"""Laws of conversion: all or nothing, evenly spread, and existing files are kept."""

import os

import numpy as np
import pytest
import tensorflow as tf

from slim.datasets import convert, mnist, records
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_mnist


def _read(paths):
    examples = map(records.parse_example, tf.data.TFRecordDataset(paths))
    return [(image.numpy().tobytes(), int(label)) for image, label in examples]


@pytest.fixture(name="source")
def _source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder, write_mnist(folder, num_images=23)


def _convert(source, target, **options):
    convert.convert("mnist", str(target), source_dir=str(source[0]), **options)


def test_records_hold_the_source_and_labels_their_names(source, tmp_path, capsys):
    _convert(source, tmp_path / "out")
    for split, (images, labels) in source[1].items():
        dataset = get_dataset("mnist", split, str(tmp_path / "out"))
        assert dataset.num_examples == 23
        expected = [(image.tobytes(), label) for image, label in zip(images, labels, strict=True)]
        assert _read(dataset.files) == expected
    assert (tmp_path / "out" / "labels.txt").read_text().startswith("0:zero\n1:one\n")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "counts.json",
        "labels.txt",
        "test-mnist.tfrecord",
        "train-mnist.tfrecord",
    ]
    assert capsys.readouterr().out == "Finished writing all 23 images in data set.\n" * 2


def test_shards_are_spread_evenly_and_mix_a_sorted_source(source, tmp_path):
    _convert(source, tmp_path / "out", num_shards=4)
    dataset = get_dataset("mnist", "train", str(tmp_path / "out"))
    assert [os.path.basename(path) for path in dataset.files] == [
        f"train-{index:05d}-of-00004" for index in range(4)
    ]
    assert dataset.counts == (6, 6, 6, 5)
    images, labels = source[1]["train"]
    everything = [(image.tobytes(), label) for image, label in zip(images, labels, strict=True)]
    for index, path in enumerate(dataset.files):
        assert _read(path) == everything[index::4]
    assert (
        get_dataset("mnist", "test", str(tmp_path / "out")).files[0].endswith("test-00000-of-00001")
    )


def test_existing_records_are_left_alone_unless_overwrite(source, tmp_path, capsys):
    _convert(source, tmp_path / "out", num_shards=4)
    kept, lost = (tmp_path / "out" / f"train-0000{index}-of-00004" for index in (1, 2))
    whole = kept.read_bytes()
    kept.write_bytes(b"mine")
    lost.unlink()
    capsys.readouterr()
    _convert(source, tmp_path / "out", num_shards=4)
    assert kept.read_bytes() == b"mine" and lost.exists()
    assert "4 existing record files" in capsys.readouterr().out
    _convert(source, tmp_path / "out", num_shards=4)
    assert "5 existing record files" in capsys.readouterr().out
    _convert(source, tmp_path / "out", num_shards=4, overwrite=True)
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("name", [name for names in mnist.FILES.values() for name in names])
def test_bad_source_writes_nothing(source, tmp_path, name):
    os.truncate(source[0] / name, 25)
    with pytest.raises(ValueError, match=name):
        _convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_shards_than_images_write_nothing(source, tmp_path):
    with pytest.raises(ValueError, match="23 images do not fill 24 shards"):
        _convert(source, tmp_path / "out", num_shards=24)
    assert not (tmp_path / "out").exists()


def test_stopped_conversion_leaves_no_file_that_looks_whole(source, tmp_path, monkeypatch):
    serialize, written = records.ImageRecord.serialize, []

    def stop_at_the_tenth(record):
        written.append(record)
        if len(written) == 10:
            raise KeyboardInterrupt
        return serialize(record)

    monkeypatch.setattr(records.ImageRecord, "serialize", stop_at_the_tenth)
    with pytest.raises(KeyboardInterrupt):
        _convert(source, tmp_path / "out", num_shards=4)
    assert sorted(os.listdir(tmp_path / "out")) == ["labels.txt", "train-00000-of-00004"]
    assert records.count_records([str(tmp_path / "out" / "train-00000-of-00004")]) == (6,)


def test_every_image_is_dealt_to_one_file():
    shares = convert.spread(10, ["a", "b", "c"])
    assert sorted(np.concatenate(list(shares.values()))) == list(range(10))
    assert [len(share) for share in shares.values()] == [4, 3, 3]
