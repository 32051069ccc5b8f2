"""Laws of the input pipeline: order, resuming, shares of workers, augmentation."""

import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from slim import input_pipeline
from slim.datasets import records
from slim.datasets.dataset_factory import Dataset
from slim.preprocessing.preprocessing_factory import (
    Preprocessing,
    get_preprocessing,
    whole_image,
)

_SHAPE = (4, 4, 3)
_CLASSES = tuple("0123456789")


def _make_dataset(folder, counts, shape=_SHAPE):
    """Images whose pixels all hold the image's number in the data set."""
    paths, numbers = [], itertools.count()
    for index, count in enumerate(counts):
        paths.append(str(folder / f"train-{index:05d}-of-{len(counts):05d}"))
        with records.record_writer(paths[-1]) as writer:
            for number in itertools.islice(numbers, count):
                pixels = np.full(shape, number, np.uint8).tobytes()
                writer.write(records.ImageRecord(pixels, "RAW", *shape, number % 10).serialize())
    return Dataset("mnist", "train", tuple(paths), tuple(counts), _CLASSES, shape)


def _as_float(image, size, seed):
    del size, seed
    return tf.cast(image, tf.float32)


_PIXELS = Preprocessing(whole_image, _as_float)


def _train(dataset, preprocessing=_PIXELS, **options):
    defaults = {"image_size": 4, "batch_size": 4, "seed": 1, "shuffle_pool": 7, "num_readers": 3}
    return input_pipeline.training_batches(dataset, preprocessing, **(defaults | options))


def _numbers(batches, count):
    """Returns the numbers of the first `count` images, in their order."""
    images = batches.unbatch().take(count).map(lambda image, _: image[0, 0, 0])
    return [int(number) for number in images.as_numpy_iterator()]


@pytest.fixture(name="dataset")
def _dataset(tmp_path):
    return _make_dataset(tmp_path, [9, 3, 11, 0, 8, 5])  # 36 images


@pytest.mark.slow
def test_order_is_a_function_of_seed_and_epoch_alone(dataset):
    three_epochs = _numbers(_train(dataset), 108)
    tf.random.set_seed(0)
    assert _numbers(_train(dataset, batch_size=6, num_preprocess_threads=1), 108) == three_epochs
    assert _numbers(_train(dataset, seed=2), 36) != three_epochs[:36]
    assert three_epochs[36:72] != three_epochs[:36]
    assert _numbers(_train(dataset, start_step=9), 72) == three_epochs[36:]


@pytest.mark.slow
def test_a_pool_of_any_size_is_allocated_for_the_share_only_and_gives_its_order(dataset):
    of_share = _numbers(_train(dataset, shuffle_pool=36), 72)
    assert _numbers(_train(dataset, shuffle_pool=10**14), 72) == of_share
    assert _numbers(_train(dataset, shuffle_pool=40), 72) == of_share


def test_every_epoch_holds_each_image_once(dataset):
    numbers = _numbers(_train(dataset, batch_size=5), 180)
    for epoch in range(5):
        assert sorted(numbers[36 * epoch : 36 * (epoch + 1)]) == list(range(36))


def test_image_and_label_stay_together(dataset):
    images, labels = next(iter(_train(dataset, batch_size=36)))
    assert images.dtype == tf.float32 and labels.dtype == tf.int64
    np.testing.assert_array_equal(images[:, 0, 0, 0].numpy() % 10, labels)


@pytest.mark.slow
def test_resuming_at_any_step_gives_the_remaining_batches_bit_for_bit(dataset):
    options = {"preprocessing": get_preprocessing("cifarnet", is_training=True), "batch_size": 5}
    uninterrupted = list(_train(dataset, **options).take(52))
    for start_step in (1, 7, 8, 40):
        resumed = _train(dataset, **options, start_step=start_step).take(12)
        expected = uninterrupted[start_step : start_step + 12]
        for (images, labels), batch in zip(expected, resumed, strict=True):
            np.testing.assert_array_equal(batch[0], images)
            np.testing.assert_array_equal(batch[1], labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "sizes"),
    [
        ([9, 3, 11, 0, 8, 5], [18, 18]),  # by file: 28, 8
        pytest.param([9, 3, 11, 0, 8, 5], [6] * 6, marks=pytest.mark.exhaustive),  # one is empty
        ([2, 0, 1, 3], [2, 1, 1, 1, 1]),  # fewer files than workers, and one is empty
        pytest.param([7, 100, 1], [36, 36, 36], marks=pytest.mark.exhaustive),
        pytest.param([6, 12, 9, 3], [15, 15], marks=pytest.mark.exhaustive),
        ([4, 8, 6], [4, 8, 6]),  # by file, up to twice as many
        ([4, 9, 6], [7, 6, 6]),
    ],
)
def test_shares_of_workers_are_disjoint_complete_and_of_like_size(tmp_path, counts, sizes):
    dataset = _make_dataset(tmp_path, counts)
    shares = []
    for worker, size in enumerate(sizes):
        options = {"worker_index": worker, "num_workers": len(sizes), "batch_size": 1}
        first, second = np.split(np.array(_numbers(_train(dataset, **options), 2 * size)), 2)
        assert sorted(first) == sorted(second)
        shares.extend(first)
    assert sorted(shares) == list(range(sum(counts)))


def test_uneven_shares_of_files_are_reported(tmp_path, caplog):
    _train(_make_dataset(tmp_path, [7, 100, 1]), num_workers=3, worker_index=2)
    message = (
        "by file the workers would have 7, 100, 1 records; each takes one record in 3 instead."
    )
    assert caplog.messages == [f"mnist train: {message}"]
    caplog.clear()
    _train(_make_dataset(tmp_path, [4, 8, 6]), num_workers=3)
    assert not caplog.messages


def test_unknown_worker_and_too_few_records_are_named(tmp_path):
    dataset = _make_dataset(tmp_path, [2])
    with pytest.raises(ValueError, match=r"worker 2 of 2: must lie in \[0, 2\)"):
        _train(dataset, worker_index=2, num_workers=2)
    with pytest.raises(ValueError, match="no record for worker 2 of 3: mnist train has 2 records"):
        _train(dataset, worker_index=2, num_workers=3)


@pytest.mark.slow
def test_augmentation_depends_on_seed_epoch_and_image_alone(tmp_path):
    def draw(image, size, seed):
        # Of 16 bits, so that the sum is exact.
        drawn = tf.floor(tf.random.stateless_uniform([4, 4, 3], seed) * 65536) / 65536
        return tf.cast(image, tf.float32) + drawn

    def draws(**options):
        batches = _train(dataset, Preprocessing(whole_image, draw), **options).unbatch().take(72)
        images = (image.numpy() for image, _ in batches)
        numbered = ((np.floor(image[0, 0, 0]), image) for image in images)
        return [(number, (image - number).tobytes()) for number, image in numbered]

    dataset = _make_dataset(tmp_path, [20, 16])
    reference = draws()
    assert len({image for _, image in reference}) == 72
    assert draws(batch_size=9, num_preprocess_threads=1) == reference
    # Another order, the same draws.
    assert sorted(draws(shuffle_pool=30)[:36]) == sorted(reference[:36])
    worker = draws(num_workers=2, worker_index=1)[:16]
    assert set(worker) <= set(reference[:36])
    assert not {image for _, image in draws(seed=2)} & {image for _, image in reference}


def test_evaluation_is_one_pass_with_the_smaller_last_batch(dataset):
    options = {"image_size": 4, "batch_size": 10}
    batches = input_pipeline.evaluation_batches(dataset, _PIXELS, **options)
    assert [len(labels) for _, labels in batches] == [10, 10, 10, 6]
    numbers = _numbers(batches, 100)
    assert sorted(numbers) == list(range(36))
    assert _numbers(batches, 100) == numbers


def test_batches_that_overtake_hold_the_same_images(dataset):
    numbers = _numbers(_train(dataset, deterministic=False), 36)
    assert sorted(numbers) == list(range(36))


def test_image_of_another_shape_than_the_data_sets_is_refused(tmp_path):
    dataset = _make_dataset(tmp_path, [4], shape=(5, 4, 3))
    dataset = Dataset("mnist", "train", dataset.files, dataset.counts, _CLASSES, _SHAPE)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[5,4,3\].*\[4,4,3\]"):
        _numbers(_train(dataset), 4)


def _write_photographs(folder, counts, broken=()):
    """JPEGs of several sizes, in shards, labelled by their number; `broken` ones have no image."""
    paths, numbers = [], itertools.count()
    for index, count in enumerate(counts):
        paths.append(str(folder / f"train-{index:05d}-of-{len(counts):05d}"))
        with records.record_writer(paths[-1]) as writer:
            for number in itertools.islice(numbers, count):
                sides = 16 + number % 7, 16 + number % 5
                pixels = np.random.default_rng(number).integers(0, 256, (*sides, 3), np.uint8)
                jpeg = b"broken" if number in broken else tf.io.encode_jpeg(pixels).numpy()
                boxes = ((0.2, 0.2, 0.9, 0.8),) * (number % 3)
                record = records.ImageRecord(jpeg, "jpeg", *sides, 3, number, boxes=boxes)
                writer.write(record.serialize())
    classes = tuple(map(str, range(sum(counts))))
    return Dataset("images", "train", tuple(paths), tuple(counts), classes, (None, None, 3))


def _train_photographs(dataset, name="inception", **options):
    defaults = {"image_size": 12, "batch_size": 4, "seed": 1, "shuffle_pool": 7, "num_readers": 3}
    preprocessing = get_preprocessing(name, is_training=True)
    return input_pipeline.training_batches(dataset, preprocessing, **(defaults | options))


def _contents(batches, count):
    """Returns (label, pixels) of the first `count` images, in their order."""
    images = batches.unbatch().take(count).as_numpy_iterator()
    return [(int(label), image.tobytes()) for image, label in images]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception", pytest.param("vgg", marks=pytest.mark.exhaustive)])
def test_photographs_of_all_sizes_are_a_function_of_seed_epoch_and_image(tmp_path, name):
    dataset = _write_photographs(tmp_path, [9, 3, 0, 12])
    read = functools.partial(_train_photographs, dataset, name)
    two_epochs = _contents(read(), 48)
    assert _contents(read(batch_size=6, num_preprocess_threads=1), 48) == two_epochs
    assert _contents(read(start_step=5), 28) == two_epochs[20:]
    assert sorted(label for label, _ in two_epochs[:24]) == list(range(24))
    assert len({pixels for _, pixels in two_epochs}) == 48
    shares = [_contents(read(num_workers=5, worker_index=i, batch_size=1), 4) for i in (0, 4)]
    assert set(itertools.chain(*shares)) < set(two_epochs[:24])
    images, labels = next(iter(read()))
    assert images.shape == (4, 12, 12, 3) and images.dtype == tf.float32
    assert labels.shape == (4,) and labels.dtype == tf.int64


def test_png_raw_and_grey_images_are_read_beside_jpegs(tmp_path):
    color = np.full((20, 30, 3), (200, 100, 50), np.uint8)
    grey = np.full((25, 15, 1), 90, np.uint8)
    encoded = {
        "png": (tf.io.encode_png(color).numpy(), color.shape),
        "RAW": (color.tobytes(), color.shape),
        "jpeg": (tf.io.encode_jpeg(color, chroma_downsampling=False).numpy(), color.shape),
        "PNG": (tf.io.encode_png(grey).numpy(), grey.shape),
        "JPEG": (tf.io.encode_jpeg(grey).numpy(), grey.shape),
    }
    path = str(tmp_path / "validation-00000-of-00001")
    with records.record_writer(path) as writer:
        for label, (image_format, (content, shape)) in enumerate(encoded.items()):
            writer.write(records.ImageRecord(content, image_format, *shape, label).serialize())
    dataset = Dataset("images", "validation", (path,), (5,), _CLASSES, (None, None, 3))
    preprocessing = get_preprocessing("inception", is_training=False)
    options = {"image_size": 8, "batch_size": 5}
    ((images, labels),) = input_pipeline.evaluation_batches(dataset, preprocessing, **options)
    np.testing.assert_array_equal(labels, range(5))
    expected = np.array([(200, 100, 50)] * 3 + [(90, 90, 90)] * 2) / 127.5 - 1
    np.testing.assert_allclose(images[:, 4, 4], expected, atol=0.03)


def test_resuming_among_many_shards_opens_few_and_decodes_nothing_that_it_skips(tmp_path):
    """The rest of the epoch needs few shards; in these, all that comes before is broken."""
    whole = _write_photographs(tmp_path, [5] * 40)
    options = {"num_readers": 2, "batch_size": 20, "start_step": 8}
    rest = _contents(_train_photographs(whole, **options), 40)
    needed = {label for label, _ in rest}
    broken = set(range(200)) - needed
    dataset = _write_photographs(tmp_path, [5] * 40, broken)
    shards = zip(range(0, 200, 5), dataset.files, strict=True)
    unneeded = [path for first, path in shards if needed.isdisjoint(range(first, first + 5))]
    assert len(unneeded) >= 25
    for path in unneeded:
        os.remove(path)
    assert _contents(_train_photographs(dataset, **options), 40) == rest


def test_synthetic_batches_are_one_seeded_batch_for_ever():
    batches = input_pipeline.synthetic_batches((8, 8, 3), 10, 4, seed=1)
    (images, labels), (again, _) = batches.take(2)
    np.testing.assert_array_equal(images, again)
    assert images.shape == (4, 8, 8, 3) and images.dtype == tf.float32
    assert labels.shape == (4,) and labels.dtype == tf.int32
    assert np.all((labels >= 0) & (labels < 10))


@pytest.mark.parametrize("image_shape", [(3, 5, 1), (4, 4, 3)])
def test_synthetic_batches_of_workers_are_parts_of_one(image_shape):
    workers, batch_size, seed = 4, 3, 5
    size, key = workers * batch_size, [seed, 0]
    images = tf.random.stateless_uniform([size, *image_shape], key, minval=-1.0, maxval=1.0)
    labels = tf.random.stateless_uniform([size], key, minval=0, maxval=10, dtype=tf.int32)
    for worker in range(workers):
        mine = slice(worker * batch_size, (worker + 1) * batch_size)
        made = input_pipeline.synthetic_batches(image_shape, 10, batch_size, seed, worker)
        for batch in made.take(2):
            np.testing.assert_array_equal(batch[0], images[mine])
            np.testing.assert_array_equal(batch[1], labels[mine])


_DETERMINISTIC_READER = """
import dataclasses
import sys
import tensorflow as tf
tf.config.experimental.enable_op_determinism()
from slim import input_pipeline
from slim.datasets.dataset_factory import Dataset
from slim.preprocessing.preprocessing_factory import get_preprocessing
dataset = Dataset("mnist", "train", (sys.argv[1],), (16,), ("a", "b"), (4, 4, 3))
options = {"image_size": 4, "batch_size": 4}
for preprocess, batches in (
    (get_preprocessing("cifarnet", True), lambda p: input_pipeline.training_batches(
        dataset, p, seed=1, **options)),
    (get_preprocessing("cifarnet", False), lambda p: input_pipeline.evaluation_batches(
        dataset, p, **options)),
    (get_preprocessing("inception", True), lambda p: input_pipeline.training_batches(
        dataclasses.replace(dataset, image_shape=(None, None, 3)), p, seed=1, **options)),
):
    print(len(next(iter(batches(preprocess)))[1]), "images")
"""


@pytest.mark.slow
def test_op_determinism_leaves_reading_parallel(tmp_path):
    """TensorFlow makes pipelines with an apparently stateful operation sequential."""
    dataset = _make_dataset(tmp_path, [16])
    log = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "make_deterministic=1"}
    run = subprocess.run(
        [sys.executable, "-c", _DETERMINISTIC_READER, dataset.files[0]],
        env=os.environ | log | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["4", "images"] * 3
    assert "Rewriting node" not in run.stderr
