"""Does reading data slow training down?

Compares a float step on real records with the same step on synthetic input; and for photographs the
whole input pipeline with bare tf.io.decode_jpeg and resizing, on the same records and threads.

python -m benchmarks.input_benchmark --mnist_dir=DIR --cifar10_dir=DIR --json=figures.json
python -m benchmarks.input_benchmark --jpeg_dir=FOLDER_WITH_JPEG_FILES --json=figures.json
"""

import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks import report, timing
from benchmarks.timing import Comparison, Variant
from inception.flags import table
from inception.flags.configs import TrainConfig
from inception.flags.table import TEXT, at_least, flag
from inception.training import preparation
from inception.training.problem import problem_of
from slim import input_pipeline
from slim.datasets import dataset_factory, imagenet, records
from slim.datasets.dataset_factory import Dataset
from slim.preprocessing.preprocessing_factory import get_preprocessing
from terngrad.training.errors import first_line

_PROBLEMS = {"mnist": ("lenet", 64), "cifar10": ("cifar10_alexnet", 128)}
# Untimed batches before a slice. Batches that were read ahead during a pause would make it look
# faster, and the prefetching of the other variants would make it look slower.
_READ_AHEAD = 10

# Of photographs:
_BARE = "bare JPEG"
_IMAGE_SIZE = 224
_BATCH_SIZE = 32
_SHARDS = 8
_RAW_SIDE = 256  # pixels, as build_imagenet_data's --resize_dimen in the recipes
_SHUFFLE_POOL = 256
_PREFETCHED_BATCHES = 2
_CHANNELS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options(timing.Options):
    mnist_dir: str = flag("Data", TEXT, "", "folder of MNIST's records; not set = skip MNIST")
    cifar10_dir: str = flag("Data", TEXT, "", "folder of CIFAR-10's records; not set = skip")
    jpeg_dir: str = flag("Data", TEXT, "", "folder of JPEG files, in any depth; not set = skip")
    images: int = flag("Data", at_least(1), 1024, "photographs to read; the files are repeated")
    num_preprocess_threads: int = flag(
        "Data", at_least(1), os.cpu_count() or 1, "threads that decode photographs"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.mnist_dir or self.cifar10_dir or self.jpeg_dir):
            raise table.refuse("mnist_dir", "", "this, --cifar10_dir or --jpeg_dir must be set")


def main(options: _Options) -> None:
    """Measures each data set."""
    timing.configure(options, deterministic=options.deterministic)
    comparisons = []
    for dataset, folder in (("mnist", options.mnist_dir), ("cifar10", options.cifar10_dir)):
        if folder:
            comparisons.append(_compare(dataset, folder, options))
    if options.jpeg_dir:
        comparisons.append(_compare_photographs(options))
    timing.finish(comparisons, options)


def _compare(dataset: str, folder: str, options: _Options) -> Comparison:
    net, batch_size = _PROBLEMS[dataset]
    config = TrainConfig(dataset_name=dataset, net=net, batch_size=batch_size)
    inputs = {"synthetic": None, "records": dataset_factory.get_dataset(dataset, "train", folder)}
    variants = {
        name: timing.suite_variant(
            config, preparation.training_batches(config, problem_of(config), source, 0)
        )
        for name, source in inputs.items()
    }
    times = timing.alternate(variants, options, _READ_AHEAD)
    ratios = {
        f"{unit}/step, records to synthetic": timing.ratio(values, "records", "synthetic")
        for unit, values in (("ms", times.wall), ("CPU ms", times.cpu))
    }
    found = Comparison(f"{net} on {dataset}, batch {batch_size}", times, ratios)
    found.print()
    return found


def _compare_photographs(options: _Options) -> Comparison:
    """Compares images per second, by wall time and by CPU time, with bare decoding."""
    with tempfile.TemporaryDirectory() as folder:
        variants = _pipelines(options, folder)
        times = timing.alternate(variants, options, _READ_AHEAD)
    ratios = {
        f"images/{unit}, {name} to {_BARE}": 1 / timing.ratio(values, name, _BARE)
        for unit, values in (("s", times.wall), ("CPU s", times.cpu))
        for name in variants
        if name != _BARE
    }
    for name, values in times.wall.items():
        print(f"- {name}: {1000 * _BATCH_SIZE / np.median(values):.0f} images/s")
    found = Comparison("photographs", times, ratios)
    found.print()
    return found


def _pipelines(options: _Options, folder: str) -> dict[str, Variant]:
    """Returns the suite's pipelines on JPEGs and raw pixels, and bare decoding and resizing.

    Raises:
      ValueError: there is no JPEG, or one that cannot be decoded; names it.
    """
    every = sorted(Path(options.jpeg_dir).rglob("*"))
    paths = [path for path in every if path.suffix.lower() in (".jpg", ".jpeg")]
    if not paths:
        raise table.refuse("jpeg_dir", options.jpeg_dir, "there is no .jpg or .jpeg below it")
    made = lambda make: (_made(make, path, options) for path in paths)
    jpeg = _write(os.path.join(folder, "jpeg"), made(_jpeg_record), options.images)
    raw = _write(os.path.join(folder, "raw"), made(_raw_record), options.images)
    threads = options.num_preprocess_threads

    def training(dataset: Dataset, name: str) -> tf.data.Dataset:
        return input_pipeline.training_batches(
            dataset,
            get_preprocessing(name, is_training=True),
            image_size=_IMAGE_SIZE,
            batch_size=_BATCH_SIZE,
            seed=1,
            num_preprocess_threads=threads,
            shuffle_pool=_SHUFFLE_POOL,
        )

    evaluation = input_pipeline.evaluation_batches(
        jpeg,
        get_preprocessing("inception", is_training=False),
        image_size=_IMAGE_SIZE,
        batch_size=_BATCH_SIZE,
        num_preprocess_threads=threads,
    )
    batches = {
        _BARE: _bare(jpeg, threads),
        "JPEG, vgg": training(jpeg, "vgg"),
        "JPEG, inception": training(jpeg, "inception"),
        "JPEG, evaluation": evaluation.repeat(),
        "raw, vgg": training(raw, "vgg"),
        "raw, inception": training(raw, "inception"),
    }
    return {name: _variant(iter(made)) for name, made in batches.items()}


def _variant(batches: Iterator) -> Variant:
    def run(count: int) -> None:
        for _ in range(count):
            next(batches)

    return run


def _bare(dataset: Dataset, num_threads: int) -> tf.data.Dataset:
    """Returns batches of decoded and resized JPEGs: no shuffling, no augmentation, no labels."""

    def convert(serialized: tf.Tensor) -> tf.Tensor:
        feature = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(serialized, feature)["image/encoded"]
        image = tf.io.decode_jpeg(encoded, _CHANNELS)
        return tf.image.resize(image, [_IMAGE_SIZE, _IMAGE_SIZE])

    options = tf.data.Options()
    options.threading.private_threadpool_size = min(num_threads, os.cpu_count() or 1)
    options.autotune.enabled = False
    examples = tf.data.TFRecordDataset(list(dataset.files)).repeat()
    images = examples.map(convert, num_parallel_calls=num_threads, deterministic=True)
    return images.batch(_BATCH_SIZE).prefetch(_PREFETCHED_BATCHES).with_options(options)


def _write(folder: str, made: Iterable[records.ImageRecord], num_images: int) -> Dataset:
    """Writes photographs, repeated to `num_images`, as a data set."""
    os.makedirs(folder)
    every = itertools.cycle([record.serialize() for record in made])
    contents = list(itertools.islice(every, num_images))
    for index in range(_SHARDS):
        path = f"{folder}/train-{index:05d}-of-{_SHARDS:05d}"
        with records.record_writer(path) as writer:
            for content in contents[index::_SHARDS]:
                writer.write(content)
    return dataset_factory.get_dataset(imagenet.INFO.name, "train", folder)


def _made(
    make: Callable[[bytes], records.ImageRecord], path: Path, options: _Options
) -> records.ImageRecord:
    try:
        return make(path.read_bytes())
    except tf.errors.InvalidArgumentError as error:
        why = f"{path} cannot be decoded: {first_line(error)}"
        raise table.refuse("jpeg_dir", options.jpeg_dir, why) from None


def _jpeg_record(content: bytes) -> records.ImageRecord:
    height, width, channels = tf.image.extract_jpeg_shape(content).numpy()
    return records.ImageRecord(content, "jpeg", height, width, channels, label=1)


def _raw_record(content: bytes) -> records.ImageRecord:
    image = tf.image.resize(tf.io.decode_jpeg(content, _CHANNELS), [_RAW_SIDE, _RAW_SIDE])
    pixels = tf.cast(tf.round(image), tf.uint8).numpy()
    return records.ImageRecord(pixels.tobytes(), "RAW", *pixels.shape, label=1)


if __name__ == "__main__":
    report.run(main, _Options)
