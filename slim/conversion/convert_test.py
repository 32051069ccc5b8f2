"""Laws of conversion: all or nothing, evenly spread, repeatable, and existing files are kept."""

import fcntl
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from slim.conversion import convert, record_files
from slim.conversion.options import Form, Options
from slim.datasets import mnist, records
from slim.datasets.dataset_factory import get_dataset
from slim.testing import write_mnist, write_pictures


def _read(paths):
    examples = map(records.parse_example, tf.data.TFRecordDataset(paths))
    return [(image.numpy().tobytes(), int(label)) for image, label in examples]


@pytest.fixture(name="source")
def _source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return folder, write_mnist(folder, num_images=23)


def _convert(source, target, train_shards=None, **options):
    shards = train_shards and {"train": train_shards, "test": 1}
    convert.convert(
        "mnist",
        str(target),
        source_dir=str(source[0]),
        num_shards=shards,
        options=Options(**options),
    )


def test_records_hold_the_source_and_labels_their_names(source, tmp_path, capsys):
    _convert(source, tmp_path / "out")
    for split, (images, labels) in source[1].items():
        dataset = get_dataset("mnist", split, str(tmp_path / "out"))
        assert dataset.num_examples == 23
        expected = [(image.tobytes(), label) for image, label in zip(images, labels, strict=True)]
        assert _read(dataset.files) == expected
    assert (tmp_path / "out" / "labels.txt").read_text().startswith("0:zero\n1:one\n")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "conversion.json",
        "counts.json",
        "labels.txt",
        "test-mnist.tfrecord",
        "train-mnist.tfrecord",
    ]
    assert capsys.readouterr().out == "Finished writing all 46 images in data set.\n"


def test_shards_are_spread_evenly_and_mix_a_sorted_source(source, tmp_path):
    _convert(source, tmp_path / "out", train_shards=4)
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


_CONVERT = """
from slim.conversion import convert
from slim.conversion.options import Options
convert.convert("mnist", {out!r}, source_dir={source!r}, options=Options(num_threads=5))
"""


@pytest.mark.slow
def test_files_have_equal_bytes_in_every_process_and_with_any_number_of_threads(source, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    _convert(source, here, num_threads=1)
    command = _CONVERT.format(out=str(there), source=str(source[0]))
    subprocess.run([sys.executable, "-c", command], check=True, capture_output=True)
    written = [{path.name: path.read_bytes() for path in out.iterdir()} for out in (here, there)]
    assert written[0] == written[1]


def test_a_stopped_conversion_goes_on_with_the_missing_files(source, tmp_path, capsys):
    out = tmp_path / "out"
    _convert(source, out, train_shards=4)
    whole = {path.name: path.read_bytes() for path in out.iterdir()}
    kept, lost = (out / f"train-0000{index}-of-00004" for index in (1, 2))
    before = kept.stat().st_mtime_ns
    lost.unlink()
    capsys.readouterr()
    _convert(source, out, train_shards=4)
    assert kept.stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "4 existing record files" in printed and "all 46 images" in printed
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    _convert(source, out, train_shards=4)
    assert "5 existing record files" in capsys.readouterr().out
    _convert(source, out, train_shards=4, overwrite=True)
    assert kept.stat().st_mtime_ns > before
    assert "existing" not in capsys.readouterr().out


def test_nothing_is_downloaded_for_a_complete_folder(source, tmp_path, monkeypatch):
    _convert(source, tmp_path / "out")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    downloads = []
    monkeypatch.setattr(mnist, "download", lambda *arguments: downloads.append(arguments))
    convert.convert("mnist", str(tmp_path / "out"))
    assert not downloads
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == whole


def test_pictures_in_another_form_are_refused_also_without_a_source(tmp_path):
    write_pictures(tmp_path / "pictures", {"a": 4, "b": 4})
    source, out = str(tmp_path / "pictures"), str(tmp_path / "out")
    convert.convert("images", out, source_dir=source)
    convert.convert("images", out)
    pixels = Form(raw_pixel=True, resize_dimen=8)
    words = r"(\d pictures \(\w+\)) as JPEG, not from \1 as raw pixels of side 8; name another"
    for given in (source, None):
        with pytest.raises(ValueError, match=f"train records were made from {words}"):
            convert.convert("images", out, source_dir=given, form=pixels)
    (tmp_path / "out" / "conversion.json").unlink()
    convert.convert("images", out, form=pixels)  # whose form is not known


def test_records_of_an_earlier_version_without_a_note_are_kept(source, tmp_path):
    _convert(source, tmp_path / "out")
    (tmp_path / "out" / "conversion.json").unlink()
    os.remove(tmp_path / "out" / "test-mnist.tfrecord")
    _convert(source, tmp_path / "out")
    assert get_dataset("mnist", "test", str(tmp_path / "out")).num_examples == 23


def test_other_images_are_refused_until_the_old_records_are_replaced(source, tmp_path):
    _convert(source, tmp_path / "out")
    os.remove(tmp_path / "out" / "train-mnist.tfrecord")
    write_mnist(source[0], num_images=24)
    with pytest.raises(ValueError, match=r"test records were made from 23 images .*--overwrite"):
        _convert(source, tmp_path / "out")
    assert not (tmp_path / "out" / "train-mnist.tfrecord").exists()
    _convert(source, tmp_path / "out", overwrite=True)
    assert get_dataset("mnist", "train", str(tmp_path / "out")).num_examples == 24


def test_another_number_of_files_is_refused_until_the_old_records_are_replaced(source, tmp_path):
    _convert(source, tmp_path / "out", train_shards=4)
    for other in (None, 3):
        with pytest.raises(ValueError, match=r"-00000-of-0000[14] belongs to another set"):
            _convert(source, tmp_path / "out", train_shards=other)
    _convert(source, tmp_path / "out", train_shards=3, overwrite=True)
    assert len(get_dataset("mnist", "train", str(tmp_path / "out")).files) == 3


def test_a_damaged_note_is_named(source, tmp_path):
    _convert(source, tmp_path / "out")
    for content in ("{", "3", '{"train": 3}', '{"train": {}}'):
        (tmp_path / "out" / "conversion.json").write_text(content)
        with pytest.raises(ValueError, match=r"conversion\.json: is not the note"):
            _convert(source, tmp_path / "out")


@pytest.mark.parametrize("name", [name for names in mnist.FILES.values() for name in names])
def test_bad_source_writes_nothing(source, tmp_path, name):
    os.truncate(source[0] / name, 25)
    with pytest.raises(ValueError, match=name):
        _convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_shards_than_images_write_nothing(source, tmp_path):
    with pytest.raises(ValueError, match=r"^flag --train_shards=24: 23 train images do not f"):
        _convert(source, tmp_path / "out", train_shards=24)
    assert not (tmp_path / "out").exists()


def test_too_many_shards_are_refused_before_any_of_them_has_a_name(source, tmp_path, monkeypatch):
    for module in (convert, record_files):
        monkeypatch.setattr(module, "record_paths", lambda *arguments: pytest.fail("a name"))
    with pytest.raises(ValueError, match=r"--train_shards=3000000: .*; allowed are at most 23$"):
        _convert(source, tmp_path / "out", train_shards=3_000_000)


def test_stopped_conversion_leaves_no_file_that_looks_whole(source, tmp_path, monkeypatch):
    serialize, written = records.ImageRecord.serialize, []

    def stop_at_the_tenth(record):
        written.append(record)
        if len(written) == 10:
            raise KeyboardInterrupt
        return serialize(record)

    monkeypatch.setattr(records.ImageRecord, "serialize", stop_at_the_tenth)
    with pytest.raises(KeyboardInterrupt):
        _convert(source, tmp_path / "out", train_shards=4, num_threads=1)
    first = tmp_path / "out" / "train-00000-of-00004"
    assert [path for path in (tmp_path / "out").iterdir() if "-of-" in path.name] == [first]
    assert not any("partial" in name for name in os.listdir(tmp_path / "out"))
    assert records.count_records([str(first)]) == (6,)


def test_an_overwriting_conversion_that_was_stopped_goes_on(source, tmp_path, monkeypatch, capsys):
    out, replace = tmp_path / "out", os.replace
    _convert(source, out, train_shards=4)
    write_mnist(source[0], num_images=16)

    def stop_at_the_second(temporary, path):
        replace(temporary, path)
        if path.endswith("train-00001-of-00004"):
            raise KeyboardInterrupt

    with monkeypatch.context() as stopping, pytest.raises(KeyboardInterrupt):
        stopping.setattr(os, "replace", stop_at_the_second)
        _convert(source, out, train_shards=4, overwrite=True)
    _convert(source, out, train_shards=4)
    assert "keeps its 2 existing record files" in capsys.readouterr().out
    assert get_dataset("mnist", "train", str(out)).counts == (4, 4, 4, 4)


@pytest.mark.parametrize("name", ["labels.txt", "conversion.json", "counts.json"])
def test_a_full_disk_names_the_text_file_that_did_not_fit(source, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    os.symlink("/dev/full", out / f".{name}.{os.getpid()}.partial")
    with pytest.raises(OSError, match=rf"out/{name}: cannot be written \(No space left on device"):
        _convert(source, out)
    assert not (out / name).exists()


def test_a_full_disk_leaves_no_file_and_names_the_one_that_did_not_fit(source, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    os.symlink("/dev/full", out / f".train-mnist.tfrecord.{os.getpid()}.partial")
    with pytest.raises(OSError, match=r"train-mnist\.tfrecord: cannot be written \([A-Z][^;]*\)$"):
        _convert(source, out)
    assert sorted(os.listdir(out)) == ["conversion.json", "labels.txt"]


def test_a_damaged_record_file_that_is_kept_is_named(source, tmp_path):
    _convert(source, tmp_path / "out")
    os.truncate(tmp_path / "out" / "train-mnist.tfrecord", 1000)
    with pytest.raises(ValueError, match=r"train-mnist\.tfrecord is cut off at byte 1000"):
        _convert(source, tmp_path / "out")


def test_a_folder_that_cannot_be_written_is_named(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        _convert(source, tmp_path / "file" / "out")


def test_records_of_unknown_origin_keep_their_classes(tmp_path):
    write_pictures(tmp_path / "pictures", {"a": 4, "b": 4})
    out = tmp_path / "out"
    convert.convert("images", str(out), source_dir=str(tmp_path / "pictures"))
    (out / "conversion.json").unlink()
    write_pictures(tmp_path / "pictures", {"0new": 4})
    with pytest.raises(ValueError, match=r"labels\.txt names 3 classes, the images have 4"):
        convert.convert("images", str(out), source_dir=str(tmp_path / "pictures"))
    assert (out / "labels.txt").read_text() == "0:background\n1:a\n2:b\n"


def test_two_conversions_do_not_share_a_folder(source, tmp_path):
    (tmp_path / "out").mkdir()
    other = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match=f"{tmp_path}/out: another conversion writes there"):
        _convert(source, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    os.close(other)
    _convert(source, tmp_path / "out")


def test_what_a_killed_conversion_has_left_is_removed(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".train-mnist.tfrecord.123.partial").write_text("half")
    _convert(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))
