"""TFRecord files of labelled images: the only writer and parser of their schema.

Every record is a `tf.train.Example` with the keys of `ImageRecord.serialize`. `counts.json`, beside
the record files, holds the number of records in each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from slim.datasets import files

_COUNTS_FILE = "counts.json"
_FRAME_BYTES = 16  # of a record besides its data: length (8), checksums of length and data (4, 4)
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_COLORSPACES = {1: "Grayscale", 3: "RGB"}


@dataclasses.dataclass(frozen=True)
class ImageRecord:
    """One labelled image as it is stored.

    Attributes:
      encoded: a file of `format`; for RAW the uint8 pixels, row by row, channels last.
      format: "png", "jpeg" or "RAW".
      height: height of the decoded image in pixels.
      width: width of the decoded image in pixels.
      channels: channels of the decoded image.
      label: index of the class.
      text: name of the class.
      synset: WordNet id of the class.
      filename: name of the original file.
      boxes: bounding boxes (xmin, ymin, xmax, ymax) as shares of width and height, in [0, 1].
    """

    encoded: bytes
    format: str
    height: int
    width: int
    channels: int
    label: int
    text: str = ""
    synset: str = ""
    filename: str = ""
    boxes: tuple[tuple[float, float, float, float], ...] = ()

    def serialize(self) -> bytes:
        """Returns a serialized `tf.train.Example`, without the keys that would be empty."""
        feature = {
            "image/encoded": _bytes(self.encoded),
            "image/format": _text(self.format),
            "image/height": _ints(self.height),
            "image/width": _ints(self.width),
            "image/channels": _ints(self.channels),
            "image/colorspace": _text(_COLORSPACES.get(self.channels, "")),
            "image/class/label": _ints(self.label),
        }
        names = {"class/text": self.text, "class/synset": self.synset, "filename": self.filename}
        feature |= {f"image/{key}": _text(name) for key, name in names.items() if name}
        if self.boxes:
            feature["image/object/bbox/label"] = _ints(*[self.label] * len(self.boxes))
            for side, values in zip(_SIDES, zip(*self.boxes, strict=True), strict=True):
                feature[f"image/object/bbox/{side}"] = _floats(*values)
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        return example.SerializeToString(deterministic=True)  # else keys are in random order


class EncodedImage(NamedTuple):
    """Encoded images: tensors of shape [] for an image, or [B] for a batch."""

    encoded: tf.Tensor  # string
    format: tf.Tensor  # string
    height: tf.Tensor  # int64, read for RAW only
    width: tf.Tensor  # int64, read for RAW only


@contextlib.contextmanager
def record_writer(path: str) -> Iterator[tf.io.TFRecordWriter]:
    """Opens a record file for writing; it gets its name if the block ends without an error."""
    with files.replacing(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        yield writer


def store_counts(counts: Mapping[str, int]) -> None:
    """Stores the numbers of records of finished files, by path, in their folders."""
    for folder in {os.path.dirname(path) for path in counts}:
        stored = _stored_counts(folder)
        for path, records in counts.items():
            if os.path.dirname(path) == folder:
                entry = {"records": records, "bytes": os.path.getsize(path)}
                stored[os.path.basename(path)] = entry
        with files.replacing_text(os.path.join(folder, _COUNTS_FILE)) as file:
            json.dump(stored, file, indent=0, sort_keys=True)


def count_records(paths: Sequence[str]) -> tuple[int, ...]:
    """Returns the number of records in each file (or link to it): as stored, else counted.

    Raises:
      ValueError: a file does not consist of complete records; the text names file and offset.
    """
    paths = [os.path.realpath(path) for path in paths]
    stored = {folder: _stored_counts(folder) for folder in set(map(os.path.dirname, paths))}
    return tuple(
        _count(path, stored[os.path.dirname(path)].get(os.path.basename(path))) for path in paths
    )


def find_damage(path: str, labels: range | None = None) -> str | None:
    """Reads the whole file with checksums, decodes its images, and looks for the first bad record.

    Args:
      path: path of the record file.
      labels: allowed labels, from labels_offset on; None allows all.

    Returns:
      A line with file, number and byte offset of the record, and the reason; None for an undamaged
      file.
    """
    number = 0
    try:
        for _, label in tf.data.TFRecordDataset(path).map(parse_example):
            if labels is not None and int(label) not in labels:
                return (
                    f"{_place(path, number)} has label {label}; "
                    f"with labels_offset {labels[0]} it must be {labels[0]} to {labels[-1]}"
                )
            number += 1
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        damage = "checksum or length" if isinstance(error, tf.errors.DataLossError) else "content"
        return f"{_place(path, number)} is damaged ({damage} is wrong)"
    return None


@contextlib.contextmanager
def naming_damage(paths: Sequence[str], labels: range | None = None) -> Iterator[None]:
    """Turns TensorFlow's error about a damaged record in the block into a ValueError.

    Args:
      paths: the record files that the block reads; they are searched only after an error.
      labels: see `find_damage`.
    """
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
        damages = filter(None, (find_damage(path, labels) for path in paths))
        if damage := next(damages, None):
            raise ValueError(damage) from None
        raise


def parse_examples(serialized: tf.Tensor) -> tuple[EncodedImage, tf.Tensor]:
    """Parses a batch of Examples, also TF-Slim's, which have fewer keys.

    Args:
      serialized: string [B].

    Returns:
      The images, still encoded, and their labels, int32 [B].
    """
    parsed = tf.io.parse_example(
        serialized,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/format": tf.io.FixedLenFeature([], tf.string, "png"),
            "image/height": tf.io.FixedLenFeature([], tf.int64, 0),
            "image/width": tf.io.FixedLenFeature([], tf.int64, 0),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    image = EncodedImage(*(parsed[f"image/{field}"] for field in EncodedImage._fields))
    return image, tf.cast(parsed["image/class/label"], tf.int32)


def decode_image(image: EncodedImage, channels: int = 0) -> tf.Tensor:
    """Decodes one image (fields of shape []) to uint8 [H, W, C]; channels 0 means as stored."""

    def raw() -> tf.Tensor:
        shape = tf.stack([image.height, image.width, channels or -1])
        return tf.reshape(tf.io.decode_raw(image.encoded, tf.uint8), shape)

    # decode_png recognises JPEG too.
    return tf.cond(image.format == "RAW", raw, lambda: tf.io.decode_png(image.encoded, channels))


def parse_example(serialized: tf.Tensor, channels: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses and decodes one Example: string [] to (image uint8 [H, W, C], label int32 [])."""
    images, labels = parse_examples(serialized[tf.newaxis])
    return decode_image(EncodedImage(*(field[0] for field in images)), channels), labels[0]


def _count(path: str, stored: Mapping[str, int] | None) -> int:
    if stored and stored["bytes"] == os.path.getsize(path):
        return stored["records"]
    try:
        return sum(1 for _ in _record_offsets(path))
    except ValueError as error:
        # After a wrong length, the offset is useless; reading with checksums finds the record.
        raise ValueError(find_damage(path) or str(error)) from None


def _place(path: str, number: int) -> str:
    offset = next(itertools.islice(_record_offsets(path), number, None))
    return f"{path}: record {number} at byte {offset}"


def _record_offsets(path: str) -> Iterator[int]:
    """Yields the offset of each record, without reading their content."""
    size, end = os.path.getsize(path), 0
    with open(path, "rb") as file:
        while (offset := end) < size:
            yield offset
            file.seek(offset)
            end += int.from_bytes(file.read(8), "little") + _FRAME_BYTES
            if end > size:
                raise ValueError(f"{path}: the record at byte {offset} is cut off at byte {size}")


def _stored_counts(folder: str) -> dict[str, dict[str, int]]:
    """Returns {file: {"records": N, "bytes": size of the file when it was counted}}."""
    try:
        with open(os.path.join(folder, _COUNTS_FILE), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _text(value: str) -> tf.train.Feature:
    return _bytes(value.encode())


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
