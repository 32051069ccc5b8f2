"""Laws of record files: complete or absent, read as written, and errors name the damage."""

import io
import json
import os
import re

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from slim.datasets import records

_FORMATS = ("png", "RAW", "raw")
_SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]))


def _image(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _record(image, image_format="png", **fields):
    encoded = image.tobytes() if image_format in ("RAW", "raw") else tf.io.encode_png(image).numpy()
    return records.ImageRecord(encoded, image_format, *image.shape, **({"label": 3} | fields))


def _write(path, num_records=5):
    with records.record_writer(str(path)) as writer:
        for seed in range(num_records):
            writer.write(_record(_image((4, 5, 3), seed)).serialize())
    return str(path)


@settings(max_examples=30)
@given(_SHAPES, st.integers(-(2**63), 2**63 - 1), st.sampled_from(_FORMATS), st.integers(0, 99))
def test_image_and_label_survive_the_round_trip(shape, label, image_format, seed):
    image = _image(shape, seed)
    serialized = _record(image, image_format, label=label).serialize()
    parsed_image, parsed_label = records.parse_example(tf.constant(serialized))
    np.testing.assert_array_equal(parsed_image, image)
    assert parsed_label.dtype == tf.int64 and parsed_label == label


def test_jpeg_is_decoded_and_grey_becomes_colour_when_asked():
    encoded = tf.io.encode_jpeg(np.full((8, 8, 1), 200, np.uint8)).numpy()
    serialized = records.ImageRecord(encoded, "jpeg", 8, 8, 1, 0).serialize()
    image, _ = records.parse_example(tf.constant(serialized), channels=3)
    np.testing.assert_array_equal(image, np.full((8, 8, 3), 200))


def test_record_holds_the_keys_of_the_schema():
    record = _record(
        _image((4, 5, 3)),
        text="tench",
        synset="n01440764",
        filename="a.png",
        boxes=((0.0, 0.25, 0.5, 0.75), (0.5, 0.5, 1.0, 1.0)),
    )
    feature = tf.train.Example.FromString(record.serialize()).features.feature
    assert feature["image/colorspace"].bytes_list.value == [b"RGB"]
    assert feature["image/class/text"].bytes_list.value == [b"tench"]
    assert feature["image/class/synset"].bytes_list.value == [b"n01440764"]
    assert feature["image/filename"].bytes_list.value == [b"a.png"]
    assert feature["image/object/bbox/ymin"].float_list.value == [0.25, 0.5]
    assert feature["image/object/bbox/xmax"].float_list.value == [0.5, 1.0]
    assert feature["image/object/bbox/label"].int64_list.value == [3, 3]
    shape = [feature[f"image/{key}"].int64_list.value for key in ("height", "width", "channels")]
    assert shape == [[4], [5], [3]]


def test_old_tf_slim_records_are_read():
    image = _image((28, 28, 1))
    example = tf.train.Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(tf.io.encode_png(image).numpy())
    feature["image/format"].bytes_list.value.append(b"png")
    for key, value in {"class/label": 7, "height": 28, "width": 28}.items():
        feature[f"image/{key}"].int64_list.value.append(value)
    parsed_image, label = records.parse_example(tf.constant(example.SerializeToString()))
    np.testing.assert_array_equal(parsed_image, image)
    assert label == 7


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_stopped_writing_leaves_what_was_there_before(tmp_path, error):
    path = _write(tmp_path / "train-mnist.tfrecord")
    before = (tmp_path / "train-mnist.tfrecord").read_bytes()
    with pytest.raises(error), records.record_writer(path) as writer:
        writer.write(b"half")
        raise error
    assert os.listdir(tmp_path) == ["train-mnist.tfrecord"]
    assert (tmp_path / "train-mnist.tfrecord").read_bytes() == before


@settings(max_examples=10)
@given(st.integers(0, 20))
def test_records_are_counted_without_a_stored_count(tmp_path_factory, num_records):
    path = _write(tmp_path_factory.mktemp("counted") / "some.tfrecord", num_records)
    assert records.count_records([path]) == (num_records,)


def test_stored_count_is_believed_while_the_size_fits_also_through_a_link(tmp_path):
    path, link = _write(tmp_path / "train-00000-of-00001"), tmp_path / "worker" / "linked"
    records.store_counts({path: 77})  # wrong, so that it shows
    link.parent.mkdir()
    link.symlink_to(path)
    assert records.count_records([path, str(link)]) == (77, 77)
    _write(path, num_records=6)
    assert records.count_records([path]) == (6,)


def test_counts_of_other_files_stay(tmp_path):
    first, second = _write(tmp_path / "a", 1), _write(tmp_path / "b", 2)
    records.store_counts({first: 1})
    records.store_counts({second: 2})
    stored = json.loads((tmp_path / "counts.json").read_text())
    assert {name: entry["records"] for name, entry in stored.items()} == {"a": 1, "b": 2}


@pytest.mark.slow
@settings(max_examples=12)
@given(st.data())
def test_damage_is_named_with_file_record_and_offset(tmp_path_factory, data):
    path = _write(tmp_path_factory.mktemp("damaged") / "train-mnist.tfrecord")
    offsets = list(records._record_offsets(path))
    place = data.draw(st.integers(0, os.path.getsize(path) - 1))
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ data.draw(st.integers(1, 255))]))
    number = sum(offset <= place for offset in offsets) - 1
    expected = f"{path}: record {number} at byte {offsets[number]} is damaged"
    assert records.find_damage(path).startswith(expected)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_truncated_file_is_named_when_counted(tmp_path_factory, data):
    path = _write(tmp_path_factory.mktemp("truncated") / "train-mnist.tfrecord")
    offsets = list(records._record_offsets(path))
    size = data.draw(st.integers(1, os.path.getsize(path) - 1).filter(lambda n: n not in offsets))
    os.truncate(path, size)
    last = max(offset for offset in offsets if offset < size)
    with pytest.raises(
        ValueError, match=rf"{path}: .*record .*at byte {last} is (damaged|cut off)"
    ):
        records.count_records([path])


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_a_compressed_file_is_named_when_counted_and_when_read(tmp_path, kind):
    path = str(tmp_path / "train-00000-of-00001")
    with tf.io.TFRecordWriter(path, kind) as writer:
        writer.write(_record(_image((4, 5, 3))).serialize())
    message = f"{path} is compressed ({kind}); write it again without compression"
    with pytest.raises(ValueError, match=re.escape(message)):
        records.count_records([path])
    records.store_counts({path: 1})
    with pytest.raises(ValueError, match=re.escape(message)), records.naming_damage([path]):
        list(tf.data.TFRecordDataset(records.count_records([path]) and [path]))


def test_whole_file_has_no_damage(tmp_path):
    assert records.find_damage(_write(tmp_path / "train-mnist.tfrecord")) is None


def _without(key):
    example = tf.train.Example.FromString(_record(_image((4, 5, 3))).serialize())
    del example.features.feature[key]
    return example.SerializeToString()


def _with(key, **values):
    """A record whose `key` has values of another type or number, e.g. float_list=[1.0]."""
    example = tf.train.Example.FromString(_record(_image((4, 5, 3))).serialize())
    feature = example.features.feature[key]
    feature.Clear()
    for kind, content in values.items():
        getattr(feature, kind).value.extend(content)
    return example.SerializeToString()


def _with_sides(**counts):
    example = tf.train.Example.FromString(_record(_image((4, 5, 3))).serialize())
    for side, count in counts.items():
        feature = example.features.feature[f"image/object/bbox/{side}"]
        feature.float_list.value.extend([0.5] * count)
    return example.SerializeToString()


_BAD_RECORDS = {
    "it is no tf.train.Example": lambda: b"record",
    "image/class/label is missing": lambda: _without("image/class/label"),
    "image/encoded is missing": lambda: _without("image/encoded"),
    "image/class/label has 2 values, must have one": (
        lambda: _with("image/class/label", int64_list=[1, 1])
    ),
    "image/class/label is of type float, must be int64": (
        lambda: _with("image/class/label", float_list=[1.0])
    ),
    "image/encoded is of type int64, must be bytes": (
        lambda: _with("image/encoded", int64_list=[1])
    ),
    "image/format is of type int64, must be bytes": lambda: _with("image/format", int64_list=[1]),
    "image/object/bbox/xmin is of type int64, must be float": (
        lambda: _with("image/object/bbox/xmin", int64_list=[0])
    ),
    "its bounding boxes have unequal numbers of sides": lambda: _with_sides(xmin=2, ymin=1),
    "image/encoded is neither a JPEG nor a PNG that can be decoded": (
        lambda: records.ImageRecord(b"no image", "png", 4, 5, 3, 0).serialize()
    ),
    "image/encoded is empty": lambda: records.ImageRecord(b"", "png", 4, 5, 3, 0).serialize(),
    "the image is 0 x 0 pixels": lambda: records.ImageRecord(b"0", "RAW", 0, 0, 3, 0).serialize(),
    "image/encoded is RAW with 59 bytes, but the image has 4 x 5 pixels of 3 channels": (
        lambda: records.ImageRecord(bytes(59), "RAW", 4, 5, 3, 0).serialize()
    ),
}


@pytest.mark.parametrize("reason", _BAD_RECORDS)
def test_a_record_without_a_readable_image_is_named_with_the_reason(tmp_path, reason):
    path = _write(tmp_path / "good")
    with records.record_writer(str(tmp_path / "train")) as writer:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            writer.write(serialized)
        writer.write(_BAD_RECORDS[reason]())
    place = f"{tmp_path / 'train'}: record 5 at byte {os.path.getsize(path)}"
    expected = f"{place} is damaged (content is wrong: {reason})"
    assert records.find_damage(str(tmp_path / "train"), image_shape=(None, None, 3)) == expected


def test_an_image_of_another_shape_and_an_animation_are_named(tmp_path):
    path = _write(tmp_path / "train")  # 4 x 5 pixels
    found = records.find_damage(path, image_shape=(32, 32, 3))
    assert found.endswith("(content is wrong: the image is 4 x 5 x 3, must be 32 x 32 x 3)")
    with io.BytesIO() as file:
        frames = [PIL.Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        frames[0].save(file, "gif", save_all=True, append_images=frames[1:])
        animation = records.ImageRecord(file.getvalue(), "gif", 8, 8, 3, 0)
    with records.record_writer(str(tmp_path / "animated")) as writer:
        writer.write(animation.serialize())
    found = records.find_damage(str(tmp_path / "animated"), image_shape=(None, None, 3))
    assert found is None or "is neither a JPEG nor a PNG that can be decoded" in found


def test_a_file_that_has_become_shorter_is_named(tmp_path):
    path = _write(tmp_path / "train")
    records.store_counts({path: 5})
    os.truncate(path, list(records._record_offsets(path))[2])
    with pytest.raises(ValueError, match=rf"{path} is cut off at byte \d+: it had \d+ when it was"):
        records.count_records([path])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"train": 3}',
        '{"train": {"records": 3}}',
        '{"train": {"records": 2.5, "bytes": 9}}',
    ],
)
def test_counts_that_are_none_are_named(tmp_path, content):
    path = _write(tmp_path / "train")
    (tmp_path / "counts.json").write_text(content)
    with pytest.raises(ValueError, match=r"counts\.json does not hold counts of records"):
        records.count_records([path])


def test_boxes_are_parsed_clipped_and_kept_where_they_have_an_area():
    boxes = ((0.1, 0.2, 0.5, 0.75), (-0.5, 0.5, 1.5, 1.0), (0.3, 0.3, 0.3, 0.9), (0.9, 0.1, 0.2, 1))
    parsed = records.parse_boxes(tf.constant(_record(_image((4, 5, 3)), boxes=boxes).serialize()))
    expected = [[0.2, 0.1, 0.75, 0.5], [0.5, 0.0, 1.0, 1.0]]
    np.testing.assert_allclose(parsed, expected, rtol=1e-6)
    assert records.parse_boxes(tf.constant(_record(_image((4, 5, 3))).serialize())).shape == (0, 4)


def test_other_errors_pass_through_naming_damage(tmp_path):
    path = _write(tmp_path / "whole.tfrecord")
    with pytest.raises(tf.errors.InvalidArgumentError), records.naming_damage([path]):
        tf.debugging.assert_equal(tf.constant(1), 2)


def test_a_file_that_vanishes_is_named(tmp_path):
    paths = [_write(tmp_path / name) for name in ("first", "second")]
    said = f"^{re.escape(paths[1])}: cannot be read \\(No such file or directory\\)$"
    with pytest.raises(OSError, match=said), records.naming_damage(paths):
        os.remove(paths[1])
        list(tf.data.TFRecordDataset(paths))
    assert records.typical_shape([paths[1]]) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that opens only")
def test_a_file_that_opens_but_cannot_be_read_is_named():
    said = r"^/proc/self/mem: cannot be read \(Input/output error"
    with pytest.raises(OSError, match=said), records.naming_damage(["/proc/self/mem"]):
        list(tf.data.TFRecordDataset(["/proc/self/mem"]))


def test_a_label_that_is_not_allowed_is_named_with_those_that_are(tmp_path):
    path = _write(tmp_path / "records")  # all labelled 3
    assert records.find_damage(path, range(3, 5)) is None
    found = records.find_damage(path, range(4, 10))
    where = f"{path}: record 0 at byte 0"
    assert found == f"{where} has label 3; with labels_offset 4 it must be 4 to 9"
