"""Turns record files into batches of preprocessed images.

The order of the images is a function of the seed, the epoch, the files, `num_readers` and
`shuffle_pool`. Their augmentation is a function of the seed, the epoch and the image. Threads, the
batch size and interruptions change neither. A resumed training must keep all of these.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from slim.datasets import decoding, records
from slim.datasets.dataset_factory import Dataset
from slim.preprocessing.preprocessing_factory import Preprocessing

_NUMBERS_AT_ONCE = 1 << 16
# Workers share whole files if no share has more than this many times the records of another.
_MAX_SHARE_RATIO = 2
_PREFETCHED_BATCHES = 4
_PREFETCHED_BIG_BATCHES = 2  # where images differ in size: then they are photographs
_PHILOX = 1  # TensorFlow's number of the algorithm
_NUMBERS_A_COUNT = 4  # that it draws of 32 bits for each value of its counter

# (string, int64), both [] or both [B] -> (float32 [size, size, C], int64 []) or batches of these.
_Map = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

# No function here needs autograph. Without it a program begins 0.3 s of processor time sooner.
_as_written = tf.autograph.experimental.do_not_convert


@_as_written
def training_batches(
    dataset: Dataset,
    preprocessing: Preprocessing,
    *,
    image_size: int,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    worker_index: int = 0,
    num_workers: int = 1,
    num_readers: int = 4,
    num_preprocess_threads: int = 4,
    shuffle_pool: int = 16384,
    deterministic: bool = True,
) -> tf.data.Dataset:
    """Returns endless shuffled batches of one worker's share of a data set.

    Args:
      dataset: the data set to read.
      preprocessing: applied to each image.
      image_size: side of the preprocessed images in pixels.
      batch_size: images in a batch; a batch may span two epochs.
      seed: seed of order and augmentation.
      start_step: number of batches to skip, because an earlier run has used them. They are not
        decoded, and files with no other records for the epoch are not read.
      worker_index: index of the worker's share, in [0, num_workers).
      num_workers: number of shares. Workers share files if there are enough of like size, else
        records.
      num_readers: files read at once.
      num_preprocess_threads: batches decoded and augmented at once; images where they differ in
        size.
      shuffle_pool: number of encoded images from which the next one is drawn.
      deterministic: False lets a finished batch overtake the one before it.

    Returns:
      Dataset of (images float32 [batch_size, image_size, image_size, C], labels int64
      [batch_size], as stored).

    Raises:
      ValueError: `worker_index` is out of range, or the worker's share is empty.
    """
    share = _share(dataset, worker_index, num_workers)
    readers = min(num_readers, len(share.files))
    # TensorFlow allocates the whole pool; a larger one than the share gives the same order.
    pool = min(shuffle_pool, share.num_examples)
    read = functools.partial(_read_epoch, share, seed=seed, num_readers=readers, shuffle_pool=pool)
    epoch, consumed = divmod(start_step * batch_size, share.num_examples)
    done = _files_done(share, read, epoch, consumed)
    epochs = tf.data.Dataset.range(epoch, tf.int64.max)
    examples = epochs.flat_map(lambda e: read(e, done & (e == epoch))).skip(consumed)
    return _preprocessed_batches(
        examples,
        preprocessing,
        image_shape=dataset.image_shape,
        image_size=image_size,
        batch_size=batch_size,
        seed=seed,
        num_threads=num_preprocess_threads,
        is_training=True,
        deterministic=deterministic,
    )


@_as_written
def evaluation_batches(
    dataset: Dataset,
    preprocessing: Preprocessing,
    *,
    image_size: int,
    batch_size: int,
    num_examples: int | None = None,
    num_readers: int = 4,
    num_preprocess_threads: int = 4,
) -> tf.data.Dataset:
    """Returns one pass over a data set, always in the same order; the last batch may be smaller.

    Elements and arguments are those of `training_batches`, with B <= batch_size images in a batch.
    `num_examples` ends the pass early.
    """
    share = _share(dataset, worker_index=0, num_workers=1)
    readers = min(num_readers, len(share.files))
    examples = tf.data.Dataset.range(len(share.files)).interleave(
        lambda file: _read_file(share, 0, file, False), readers, num_parallel_calls=readers
    )
    return _preprocessed_batches(
        examples if num_examples is None else examples.take(num_examples),
        preprocessing,
        image_shape=dataset.image_shape,
        image_size=image_size,
        batch_size=batch_size,
        seed=0,
        num_threads=num_preprocess_threads,
        is_training=False,
    )


def synthetic_batches(
    image_shape: tuple[int, int, int],
    num_classes: int,
    batch_size: int,
    seed: int,
    worker_index: int = 0,
) -> tf.data.Dataset:
    """Returns one random batch, endlessly repeated, to measure training without reading.

    The batches of all workers are parts of one, so that an image does not depend on the number of
    workers. Each worker draws its own part only.

    Returns:
      Dataset of (images float32 [batch_size, *image_shape] in [-1, 1), labels int32 [batch_size]
      in [0, num_classes)).
    """
    first = worker_index * batch_size
    with tf.device("/CPU:0"):
        uniform = tf.raw_ops.StatelessRandomUniformV2
        images = 2.0 * _draw_rows(uniform, first, [batch_size, *image_shape], seed) - 1.0
        below = functools.partial(
            tf.raw_ops.StatelessRandomUniformIntV2, minval=0, maxval=num_classes
        )
        labels = _draw_rows(below, first, [batch_size], seed)
    return _without_tuning(tf.data.Dataset.from_tensors((images, labels)).repeat())


def _draw_rows(
    draw: Callable[..., tf.Tensor], first: int, shape: Sequence[int], seed: int
) -> tf.Tensor:
    """Returns rows from `first` on of what tf.random.stateless_uniform draws with [seed, 0]."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.constant([seed, 0], tf.int64))
    count, skipped = divmod(first * math.prod(shape[1:]), _NUMBERS_A_COUNT)
    counter += tf.constant([count, 0], tf.uint64)
    drawn = draw(shape=[skipped + math.prod(shape)], key=key, counter=counter, alg=_PHILOX)
    return tf.reshape(drawn[skipped:], shape)


@dataclasses.dataclass(frozen=True)
class _Share:
    """One worker's records: their numbers in the data set, for each of its files."""

    files: tuple[str, ...]
    firsts: tuple[int, ...]  # number of each file's first record, whether the worker's or not
    numbers: tuple[range, ...]
    stride: int  # of all the ranges
    num_in_dataset: int

    @property
    def num_examples(self) -> int:
        return sum(map(len, self.numbers))


def _share(dataset: Dataset, worker_index: int, num_workers: int) -> _Share:
    if not 0 <= worker_index < num_workers:
        raise ValueError(f"worker {worker_index} of {num_workers}: must lie in [0, {num_workers})")
    by_file = _shares_files(dataset, num_workers)
    mine = slice(worker_index, None, num_workers) if by_file else slice(None)
    stride = 1 if by_file else num_workers
    ends = list(itertools.accumulate(dataset.counts))[mine]
    firsts = [end - count for end, count in zip(ends, dataset.counts[mine], strict=True)]
    starts = firsts if by_file else [n + (worker_index - n) % num_workers for n in firsts]
    numbers = (range(*limits, stride) for limits in zip(starts, ends, strict=True))
    share = _Share(dataset.files[mine], tuple(firsts), tuple(numbers), stride, dataset.num_examples)
    if not share.num_examples:
        raise ValueError(
            f"no record for worker {worker_index} of {num_workers}: "
            f"{dataset.name} {dataset.split} has {dataset.num_examples} records"
        )
    return share


def _shares_files(dataset: Dataset, num_workers: int) -> bool:
    """Returns whether workers share whole files, rather than take every n-th record of all.

    A worker with a small share would repeat its images while the others have new ones.
    """
    if len(dataset.files) < num_workers:
        return False
    sizes = [sum(dataset.counts[worker::num_workers]) for worker in range(num_workers)]
    if max(sizes) <= _MAX_SHARE_RATIO * min(sizes):
        return True
    logging.warning(
        "%s %s: by file the workers would have %s records; each takes one record in %d instead.",
        dataset.name,
        dataset.split,
        ", ".join(map(str, sizes)),
        num_workers,
    )
    return False


def _read_file(
    share: _Share, epoch: tf.Tensor, file: tf.Tensor, done: tf.Tensor
) -> tf.data.Dataset:
    """Yields (record, number) for each of the worker's records in its file number `file`.

    The number, epoch * (records in the data set) + place in the data set, is unique over all
    epochs. With `done` the file is not read; the records are then empty.
    """
    start, stop, first = (
        tf.constant(values, tf.int64)[file]
        for values in (
            [numbers.start for numbers in share.numbers],
            [numbers.stop for numbers in share.numbers],
            share.firsts,
        )
    )
    skipped = tf.data.Dataset.from_tensor_slices([""]).repeat(tf.where(done, stop - start, 0))
    path = tf.boolean_mask(tf.constant(share.files)[file, tf.newaxis], [tf.logical_not(done)])
    records_of_file = tf.data.TFRecordDataset(path).shard(share.stride, start - first)
    base = epoch * share.num_in_dataset
    numbers = tf.data.Dataset.range(base + start, base + stop, share.stride)
    return tf.data.Dataset.zip(records_of_file.concatenate(skipped), numbers)


def _read_epoch(
    share: _Share,
    epoch: tf.Tensor,
    done: tf.Tensor,
    *,
    seed: int,
    num_readers: int,
    shuffle_pool: int,
) -> tf.data.Dataset:
    """Yields (record, number) in the order of the epoch; `done`, bool [files]: see `_read_file`."""
    draws = tf.random.stateless_uniform(
        [len(share.files) + 2],
        tf.stack([tf.constant(seed, tf.int64), epoch]),
        minval=None,
        maxval=None,
        dtype=tf.int64,
    )
    examples = tf.data.Dataset.from_tensor_slices(tf.argsort(draws[2:], stable=True)).interleave(
        lambda file: _read_file(share, epoch, file, done[file]),
        cycle_length=num_readers,
        num_parallel_calls=num_readers,
        deterministic=True,
    )
    return _shuffle(examples, shuffle_pool, draws[0], draws[1])


def _shuffle(
    examples: tf.data.Dataset, pool: int, seed: tf.Tensor, seed2: tf.Tensor
) -> tf.data.Dataset:
    """Shuffles like `examples.shuffle`, with a seed of 128 bits independent of the global seed.

    Within flat_map, `shuffle` would also create a resource for its seed. Op determinism would then
    remove all parallelism and prefetching from the pipeline.
    """
    shuffled = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(examples),
        buffer_size=pool,
        seed=seed,
        seed2=seed2,
        output_types=[spec.dtype for spec in examples.element_spec],
        output_shapes=[spec.shape for spec in examples.element_spec],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(shuffled, examples.element_spec)


def _files_done(
    share: _Share,
    read: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
    epoch: int,
    consumed: int,
) -> tf.Tensor:
    """Returns, as bool [files], which files have no records after the epoch's first `consumed`.

    Follows the epoch's order without opening a file.
    """
    done = np.full(len(share.files), consumed > 0)
    if consumed:
        none_read = tf.constant(done)
        numbered = tf.data.Dataset.range(epoch, epoch + 1).flat_map(lambda e: read(e, none_read))
        rest = numbered.skip(consumed).batch(_NUMBERS_AT_ONCE)
        for _, numbers in rest.as_numpy_iterator():
            places = numbers % share.num_in_dataset
            done[np.searchsorted(share.firsts, places, side="right") - 1] = False
    return tf.constant(done)


def _preprocessed_batches(
    examples: tf.data.Dataset,
    preprocessing: Preprocessing,
    *,
    image_shape: tuple[int | None, int | None, int],
    image_size: int,
    batch_size: int,
    seed: int,
    num_threads: int,
    is_training: bool,
    deterministic: bool = True,
) -> tf.data.Dataset:
    """Maps (record, number) to batches of (images, labels), ahead of their use.

    Small images of one size are mapped by the batch: calls for each image would cost more than
    decoding it. Others are mapped one by one, so that at most `num_threads` decoded images of any
    size, and a few batches of `image_size`, are in memory.

    Args:
      examples: of (serialized Example, string []; number, int64 []).
      preprocessing: draws from (seed, number).
      image_shape: (H, W, C) as stored; H and W are None if the images differ in size.
      image_size: side of the preprocessed images in pixels.
      batch_size: images in a batch; in training all batches are full.
      seed: seed of the augmentation.
      num_threads: batches, or images, that are decoded at once.
      is_training: whether speed counts more than the last bits of the pixels.
      deterministic: False lets a finished element overtake the one before it.

    Returns:
      Dataset of (float32 [B, image_size, image_size, C], int64 [B]).
    """
    by_batch = None not in image_shape
    if by_batch:
        examples = examples.batch(batch_size, drop_remainder=is_training)
        convert = _batch_map(preprocessing, image_shape, image_size, seed)
    else:
        convert = _image_map(preprocessing, image_shape[-1], image_size, seed, is_training)
    mapped = examples.map(convert, num_parallel_calls=num_threads, deterministic=deterministic)
    if not by_batch:
        mapped = mapped.batch(batch_size, drop_remainder=is_training)
    options = tf.data.Options()
    # More threads than cores would only delay the threads that compute the step.
    options.threading.private_threadpool_size = min(num_threads, os.cpu_count() or 1)
    ahead = _PREFETCHED_BATCHES if by_batch else _PREFETCHED_BIG_BATCHES
    return _without_tuning(mapped.prefetch(ahead).with_options(options))


def _without_tuning(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same batches without the thread that tunes buffers and parallelism (autotune).

    To delete an iterator, TensorFlow waits for its autotune thread, which may sleep for up to a
    minute, and misses a wake-up that comes too early. All workers would wait for one that repeats a
    step meanwhile.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


def _batch_map(
    preprocessing: Preprocessing, image_shape: tuple[int, int, int], image_size: int, seed: int
) -> _Map:
    channels = image_shape[-1]

    def preprocess_image(encoded: decoding.EncodedImage, number: tf.Tensor) -> tf.Tensor:
        image = tf.ensure_shape(decoding.decode_image(encoded, channels), image_shape)
        return preprocessing.apply(image, image_size, _key(seed, number))

    def preprocess_batch(serialized: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, labels = records.parse_examples(serialized)
        images = tf.map_fn(
            lambda image: preprocess_image(*image),
            (encoded, numbers),
            fn_output_signature=tf.TensorSpec([image_size, image_size, channels], tf.float32),
        )
        return images, labels

    return preprocess_batch


def _image_map(
    preprocessing: Preprocessing, channels: int, image_size: int, seed: int, is_training: bool
) -> _Map:
    # The fast transform is off by 1.1 grey levels of a photograph's pixel on average.
    dct_method = "INTEGER_FAST" if is_training else "INTEGER_ACCURATE"

    def preprocess_image(serialized: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, label = records.parse_examples(serialized)
        key = _key(seed, number)

        def window(shape: tf.Tensor) -> tf.Tensor:
            return preprocessing.window(shape, records.parse_boxes(serialized), image_size, key)

        image = decoding.decode_window(encoded, window, channels, dct_method)
        return preprocessing.finish(image, image_size, key), label

    return preprocess_image


def _key(seed: int, number: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.constant(seed, tf.int64), number])
