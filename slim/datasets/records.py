"""TFRecord files of labelled images: the only writer and parser of their schema.

Every record is a `tf.train.Example` with the keys of `ImageRecord.serialize`. `counts.json`, beside
the record files, holds the number of records in each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from slim.datasets import decoding, files
from slim.datasets.decoding import ANY_SHAPE, EncodedImage, ImageShape
from slim.datasets.picture_files import BOX_SIDES, Box

_COUNTS_FILE = "counts.json"
_SAMPLED_FILES, _SAMPLED_BYTES = 64, 4096
_SAMPLED_IMAGES = 9
_ANY_HEADER = 32  # added to the window size: zlib then reads its own format and gzip's
_FRAME_BYTES = 16  # of a record besides its data: length (8), checksums of length and data (4, 4)
_BAD = tf.errors.DataLossError, tf.errors.InvalidArgumentError
_UNREADABLE = (
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,  # of a bad disk
    tf.errors.AbortedError,  # of a stale network disk
    tf.errors.FailedPreconditionError,
)
_COLORSPACES = {1: "Grayscale", 3: "RGB"}


class DamageError(ValueError):
    """Names a record that is damaged, or that has a label that is not allowed."""


@dataclasses.dataclass(frozen=True)
class ImageRecord:
    """One labelled image as it is stored.

    Attributes:
      encoded: a file of `format`; for RAW the uint8 pixels, row by row, channels last.
      format: "png", "jpeg" or "RAW"; "raw" is read, too.
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
    boxes: tuple[Box, ...] = ()

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
            for side, values in zip(BOX_SIDES, zip(*self.boxes, strict=True), strict=True):
                feature[f"image/object/bbox/{side}"] = _floats(*values)
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        return example.SerializeToString(deterministic=True)  # else keys are in random order


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
        _write_counts(folder, stored)


def drop_counts_of_removed(folder: str) -> None:
    """Drops the stored numbers of files that are gone: new files may get their names."""
    stored = _stored_counts(folder)
    there = {name: e for name, e in stored.items() if os.path.exists(os.path.join(folder, name))}
    if there != stored:
        _write_counts(folder, there)


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


def sample_digest(paths: Sequence[str]) -> str:
    """Returns a digest of the first and last 4 KiB of up to 64 of the files, spread over all.

    It tells other records of the same number and size apart without reading all of them.
    """
    digest = hashlib.sha256()
    for path in paths[:: max(1, -(-len(paths) // _SAMPLED_FILES))]:
        with open(path, "rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, os.path.getsize(path) - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()[:16]


def typical_shape(paths: Sequence[str]) -> tuple[int, int] | None:
    """Returns the median height and width of the first images; None if they cannot be read."""
    first = tf.data.TFRecordDataset(paths).take(_SAMPLED_IMAGES)
    try:
        shapes = [parse_example(record)[0].shape[:2] for record in first]
    except _BAD + _UNREADABLE:
        return None  # reading the records names the fault
    if not shapes:
        return None
    height, width = (sorted(sides)[len(sides) // 2] for sides in zip(*shapes, strict=True))
    return height, width


def find_damage(
    path: str, labels: range | None = None, image_shape: ImageShape = ANY_SHAPE
) -> str | None:
    """Reads the whole file with checksums, decodes its images, and looks for the first bad record.

    Args:
      path: path of the record file.
      labels: allowed labels, from labels_offset on; None allows all.
      image_shape: (H, W, C) of the images as they are decoded; None allows all, C = None means the
        channels as stored.

    Returns:
      A line with file, number and byte offset of the record, and the reason; None for an undamaged
      file.
    """

    def read(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        image, label = parse_example(serialized, image_shape[-1] or 0)
        image = tf.ensure_shape(image, image_shape)
        # Grappler would leave out what nothing returned depends on.
        return label, tf.reduce_max(image), tf.size(parse_boxes(serialized))

    number = 0
    found = tf.data.TFRecordDataset(path).map(read, os.cpu_count(), deterministic=True)
    try:
        for label, *_ in found.as_numpy_iterator():
            if labels is not None and label not in labels:
                return (
                    f"{_place(path, number)} has label {label}; "
                    f"with labels_offset {labels[0]} it must be {labels[0]} to {labels[-1]}"
                )
            number += 1
    except tf.errors.DataLossError:
        if number == 0 and (kind := _compression(path)):
            return f"{path} is compressed ({kind}); write it again without compression"
        return f"{_place(path, number)} is damaged (checksum or length is wrong)"
    except tf.errors.InvalidArgumentError as error:
        (serialized,) = tf.data.TFRecordDataset(path).skip(number).take(1).as_numpy_iterator()
        reason = decoding.find_fault(serialized, image_shape) or error.message.splitlines()[0]
        return f"{_place(path, number)} is damaged (content is wrong: {reason})"
    return None


@contextlib.contextmanager
def naming_damage(
    paths: Sequence[str],
    labels: range | None = None,
    image_shape: ImageShape = ANY_SHAPE,
    *,
    before_search: Callable[[], str] = lambda: "",
) -> Iterator[None]:
    """Turns TensorFlow's error about records that the block reads into one that names them.

    Args:
      paths: the record files that the block reads; they are searched only after an error.
      labels: see `find_damage`.
      image_shape: see `find_damage`.
      before_search: called before files are searched, which may take long; returns a text for the
        log.

    Raises:
      DamageError: a record is damaged.
      UnreadableError: a file cannot be read.
    """
    try:
        yield
    except _UNREADABLE as error:
        files.check_readable(paths)
        named = [path for path in paths if path in error.message]
        if path := max(named, key=len, default=None):  # a name may begin as another one
            reason = error.message.splitlines()[0].rpartition("; ")[2]
            raise files.UnreadableError(f"{path}: cannot be read ({reason})") from None
        raise
    except _BAD:
        files.check_readable(paths)
        if paths:
            done = before_search()
            where = f"in {len(paths)} files" + (f"; {done}" if done else "")
            print(f"Looking for the damaged record {where}.", flush=True)
        damages = filter(None, (find_damage(path, labels, image_shape) for path in paths))
        if damage := next(damages, None):
            raise DamageError(damage) from None
        raise


def parse_examples(serialized: tf.Tensor) -> tuple[EncodedImage, tf.Tensor]:
    """Parses a batch of Examples, or one, also TF-Slim's, which have fewer keys.

    Args:
      serialized: string [B] or [].

    Returns:
      The images, still encoded, and their labels, int64 [B] or [], as they are stored.
    """
    parse = tf.io.parse_example if serialized.shape.rank else tf.io.parse_single_example
    parsed = parse(
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
    return image, parsed["image/class/label"]


def parse_boxes(serialized: tf.Tensor) -> tf.Tensor:
    """Parses the bounding boxes of one Example, string [].

    Returns:
      (ymin, xmin, ymax, xmax) of each box that has an area, float32 [N, 4] in [0, 1].
    """
    sides = {
        side: tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)
        for side in (f"image/object/bbox/{name}" for name in ("ymin", "xmin", "ymax", "xmax"))
    }
    parsed = tf.io.parse_single_example(serialized, sides)
    boxes = tf.clip_by_value(tf.stack([parsed[side] for side in sides], axis=-1), 0.0, 1.0)
    has_area = tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=-1)
    return tf.gather(boxes, tf.where(has_area)[:, 0])


def parse_example(serialized: tf.Tensor, channels: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Parses and decodes one Example: string [] to (image uint8 [H, W, C], label int64 [])."""
    image, label = parse_examples(serialized)
    return decoding.decode_image(image, channels), label


def _count(path: str, stored: Mapping[str, int] | None) -> int:
    size = os.path.getsize(path)
    if stored and size < stored["bytes"]:
        raise ValueError(
            f"{path} is cut off at byte {size}: it had {stored['bytes']} when it was written; make "
            f"it again, or remove {_COUNTS_FILE} if it was replaced"
        )
    if stored and size == stored["bytes"]:
        return stored["records"]
    try:
        return sum(1 for _ in _record_offsets(path))
    except ValueError as error:
        # After a wrong length, the offset is useless; reading with checksums finds the record.
        raise ValueError(find_damage(path) or str(error)) from None


def _compression(path: str) -> str:
    """Returns "GZIP" or "ZLIB" if a file that holds no records is compressed so, else ""."""
    with open(path, "rb") as file:
        start = file.read(_SAMPLED_BYTES)
    try:
        zlib.decompressobj(zlib.MAX_WBITS | _ANY_HEADER).decompress(start)
    except zlib.error:
        return ""
    return "GZIP" if start.startswith(b"\x1f") else "ZLIB"


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
    path = os.path.join(folder, _COUNTS_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        for entry in stored.values():
            operator.index(entry["records"]), operator.index(entry["bytes"])
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{path} does not hold counts of records; remove the file") from None
    return stored


def _write_counts(folder: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    with files.replacing_text(os.path.join(folder, _COUNTS_FILE)) as file:
        json.dump(counts, file, indent=0, sort_keys=True)


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _text(value: str) -> tf.train.Feature:
    return _bytes(value.encode())


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
