"""Records of photographs, and pipelines that read them, for benchmarks/input_benchmark.py."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from benchmarks.timing import Side
from slim import input_pipeline
from slim.datasets import imagenet, records
from slim.datasets.dataset_factory import Dataset, get_dataset
from slim.preprocessing import inception
from slim.preprocessing.preprocessing_factory import get_preprocessing

_IMAGE_SIZE = 224
_BATCH_SIZE = 32
_SHARDS = 8
_RAW_SIDE = 256  # pixels, as build_imagenet_data's --resize_dimen in the recipes
_SHUFFLE_POOL = 256
_PREFETCHED_BATCHES = 2
_CHANNELS = 3
_JPEG = (".jpg", ".jpeg")

# (encoded JPEG, string []; number int64 []) -> uint8 [h, w, 3] or float32 [h, w, 3]
_Decode = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Photographs:
    """The same photographs as JPEG and as raw pixels."""

    jpeg: Dataset
    raw: Dataset


def write(source_dir: str, folder: str, num_images: int) -> Photographs:
    """Writes the JPEG files below `source_dir`, repeated to `num_images`, as records.

    Raises:
      ValueError: there is no JPEG.
    """
    paths = sorted(path for path in Path(source_dir).rglob("*") if path.suffix.lower() in _JPEG)
    if not paths:
        raise ValueError(f"--jpeg_dir={source_dir}: there is no .jpg or .jpeg below this folder")
    contents = [path.read_bytes() for path in itertools.islice(itertools.cycle(paths), num_images)]
    kinds = {"jpeg": _jpeg_record, "raw": _raw_record}
    return Photographs(
        *(_write(os.path.join(folder, kind), contents, make) for kind, make in kinds.items())
    )


def pipelines(photographs: Photographs, num_threads: int) -> dict[str, Side]:
    """Returns the suite's pipelines, and bare decoding and resizing, as sides of a comparison."""

    def training(dataset: Dataset, name: str) -> tf.data.Dataset:
        return input_pipeline.training_batches(
            dataset,
            get_preprocessing(name, is_training=True),
            image_size=_IMAGE_SIZE,
            batch_size=_BATCH_SIZE,
            seed=1,
            num_preprocess_threads=num_threads,
            shuffle_pool=_SHUFFLE_POOL,
        )

    evaluation = input_pipeline.evaluation_batches(
        photographs.jpeg,
        get_preprocessing("inception", is_training=False),
        image_size=_IMAGE_SIZE,
        batch_size=_BATCH_SIZE,
        num_preprocess_threads=num_threads,
    ).repeat()
    batches = {
        "bare JPEG": bare(photographs.jpeg, num_threads),
        "JPEG, vgg": training(photographs.jpeg, "vgg"),
        "JPEG, inception": training(photographs.jpeg, "inception"),
        "JPEG, evaluation": evaluation,
        "raw, vgg": training(photographs.raw, "vgg"),
        "raw, inception": training(photographs.raw, "inception"),
    }
    return {name: _side(made) for name, made in batches.items()}


def decoders(photographs: Photographs, num_threads: int) -> dict[str, Side]:
    """Returns ways to decode and resize as sides of a comparison."""

    def whole(method: str) -> _Decode:
        return lambda encoded, number: tf.io.decode_jpeg(encoded, _CHANNELS, dct_method=method)

    def crop(encoded: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        place = _window(encoded, number)
        return tf.image.decode_and_crop_jpeg(encoded, place, _CHANNELS, dct_method="INTEGER_FAST")

    def decode_then_crop(encoded: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        top, left, height, width = tf.unstack(_window(encoded, number))
        image = whole("INTEGER_FAST")(encoded, number)
        return image[top : top + height, left : left + width]

    ways = {
        "whole, INTEGER_FAST": whole("INTEGER_FAST"),
        "whole, INTEGER_ACCURATE": whole("INTEGER_ACCURATE"),
        "whole, then the window": decode_then_crop,
        "window (decode_and_crop_jpeg)": crop,
    }
    return {
        name: _side(bare(photographs.jpeg, num_threads, decode)) for name, decode in ways.items()
    }


def bare(
    dataset: Dataset,
    num_threads: int,
    decode: _Decode = lambda encoded, number: tf.io.decode_jpeg(encoded, _CHANNELS),
) -> tf.data.Dataset:
    """Returns batches of decoded and resized JPEGs: no shuffling, no augmentation, no labels."""

    def convert(number: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        feature = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(serialized, feature)["image/encoded"]
        return tf.image.resize(decode(encoded, number), [_IMAGE_SIZE, _IMAGE_SIZE])

    examples = tf.data.TFRecordDataset(list(dataset.files)).repeat().enumerate()
    options = tf.data.Options()
    options.threading.private_threadpool_size = min(num_threads, os.cpu_count() or 1)
    options.autotune.enabled = False
    images = examples.map(convert, num_parallel_calls=num_threads, deterministic=True)
    return images.batch(_BATCH_SIZE).prefetch(_PREFETCHED_BATCHES).with_options(options)


def images_per_sec(ms_per_batch: float) -> float:
    """Returns the speed of a side whose step takes some milliseconds."""
    return 1000 * _BATCH_SIZE / ms_per_batch


def _side(batches: tf.data.Dataset) -> Side:
    iterator = iter(batches)

    def run(count: int) -> None:
        for _ in range(count):
            next(iterator)

    return run


def _window(encoded: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    shape = tf.image.extract_jpeg_shape(encoded)[:2]
    key = tf.stack([tf.constant(1, tf.int64), number])
    return inception.training_window(shape, tf.zeros([0, 4]), _IMAGE_SIZE, key)


def _write(
    folder: str, contents: Sequence[bytes], make: Callable[[bytes], records.ImageRecord]
) -> Dataset:
    os.makedirs(folder)
    paths = [f"{folder}/train-{index:05d}-of-{_SHARDS:05d}" for index in range(_SHARDS)]
    made = {content: make(content).serialize() for content in set(contents)}
    for index, path in enumerate(paths):
        with records.record_writer(path) as writer:
            for content in contents[index::_SHARDS]:
                writer.write(made[content])
    return get_dataset(imagenet.INFO.name, "train", folder)


def _jpeg_record(content: bytes) -> records.ImageRecord:
    height, width, channels = tf.image.extract_jpeg_shape(content).numpy()
    return records.ImageRecord(content, "jpeg", height, width, channels, label=1)


def _raw_record(content: bytes) -> records.ImageRecord:
    image = tf.image.resize(tf.io.decode_jpeg(content, _CHANNELS), [_RAW_SIDE, _RAW_SIDE])
    pixels = tf.cast(tf.round(image), tf.uint8).numpy()
    return records.ImageRecord(pixels.tobytes(), "RAW", *pixels.shape, label=1)
