"""Decodes and preprocesses records in parallel, and makes batches of them."""

from __future__ import annotations

import os
from collections.abc import Callable

import tensorflow as tf

from slim.datasets import decoding, records
from slim.preprocessing.preprocessing_factory import Preprocessing

_PREFETCHED_BATCHES = 4
_PREFETCHED_BIG_BATCHES = 2  # where images differ in size: then they are photographs

# (string, int64), both [] or both [B] -> (float32 [size, size, C], int64 []) or batches of these.
_Map = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def preprocessed_batches(
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
    return without_tuning(mapped.prefetch(ahead).with_options(options))


def without_tuning(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same batches without a thread that tunes buffers and numbers of threads.

    To delete an iterator, TensorFlow waits for its tuning thread. That thread sleeps for as long as
    the iterator exists, up to a minute at a time. If it is woken up before it can see that it must
    end, it sleeps on. A worker that makes a step anew would make all others wait meanwhile.
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
