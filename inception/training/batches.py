"""Batches for training and evaluation, and errors that name bad records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from inception.flags.configs import EvalConfig, TrainConfig
from inception.training.problem import Problem
from slim import input_pipeline
from slim.datasets import records
from slim.datasets.dataset_factory import Dataset
from slim.preprocessing import preprocessing_factory

_POOL_UNIT = 1024  # images of the shuffle pool for each unit of input_queue_memory_factor
_NONE = -1


def training_batches(
    config: TrainConfig,
    problem: Problem,
    dataset: Dataset | None,
    step: int,
    worker_index: int = 0,
    num_workers: int = 1,
) -> tf.data.Dataset:
    """Returns batches (images, labels) from step `step` on; synthetic ones if `dataset` is None.

    Each of several workers gets its share of the records.
    """
    if dataset is None:
        shape = (problem.image_size, problem.image_size, problem.channels)
        return input_pipeline.synthetic_batches(
            shape, problem.num_classes, config.batch_size, config.seed, worker_index
        )
    _warn_of_crop(problem, dataset)
    batches = input_pipeline.training_batches(
        dataset,
        preprocessing_factory.get_preprocessing(problem.preprocessing, is_training=True),
        image_size=problem.image_size,
        batch_size=config.batch_size,
        seed=config.seed,
        start_step=step,
        worker_index=worker_index,
        num_workers=num_workers,
        num_readers=config.num_readers,
        num_preprocess_threads=config.num_preprocess_threads,
        shuffle_pool=_POOL_UNIT * config.input_queue_memory_factor,
        deterministic=config.deterministic,
    )
    return _shift_labels(batches, problem)


def paced(batches: tf.data.Dataset, pause: Callable[[], None]) -> tf.data.Dataset:
    """Returns the batches, each after a call of `pause`, which slows a worker down."""

    def delayed(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.control_dependencies([tf.numpy_function(pause, [], [])]):
            return tuple(map(tf.identity, batch))

    return batches.map(delayed)


def evaluation_batches(config: EvalConfig, problem: Problem, dataset: Dataset) -> tf.data.Dataset:
    """Returns batches (images, labels) in one pass over `num_evaluated` examples."""
    _warn_of_crop(problem, dataset)
    batches = input_pipeline.evaluation_batches(
        dataset,
        preprocessing_factory.get_preprocessing(problem.preprocessing, is_training=False),
        image_size=problem.image_size,
        batch_size=config.batch_size,
        num_examples=num_evaluated(config, dataset),
        num_readers=config.num_readers,
        num_preprocess_threads=config.num_preprocess_threads,
    )
    return _shift_labels(batches, problem)


def num_evaluated(config: EvalConfig, dataset: Dataset) -> int:
    """Returns the number of evaluated examples: `num_examples`, or all if there are fewer."""
    present = dataset.num_examples
    return present if config.num_examples == -1 else min(config.num_examples, present)


@contextlib.contextmanager
def naming_bad_records(
    problem: Problem,
    dataset: Dataset | None,
    before_search: Callable[[], str] = lambda: "",
) -> Iterator[None]:
    """Names the first damaged or mislabelled record if it makes the block fail.

    For `before_search` see `records.naming_damage`.

    Raises:
      DamageError: names the file and the record, what is wrong, and what is allowed.
      UnreadableError: names a file that cannot be read.
    """
    labels = range(problem.labels_offset, problem.labels_offset + problem.num_classes)
    files, shape = (dataset.files, dataset.image_shape) if dataset else ((), records.ANY_SHAPE)
    with records.naming_damage(files, labels, shape, before_search=before_search):
        yield


def _warn_of_crop(problem: Problem, dataset: Dataset) -> None:
    """Warns if the preprocessing cuts a small part out of the images."""
    *shape, _ = dataset.image_shape
    are_alike = None not in shape
    if not are_alike:
        shape = records.typical_shape(dataset.files)
    if not shape:
        return
    crop = preprocessing_factory.describe_crop(problem.preprocessing, *shape, problem.image_size)
    remedy = "give a larger image size"
    if not are_alike:
        program = "imagenet" if dataset.name == "imagenet" else "image"
        remedy = (
            f"convert them by inception.data.build_{program}_data with --raw_pixel=True "
            f"--resize_dimen={problem.image_size}"
        )
    if crop:
        logging.warning("%s: %s; to see all of them, %s", dataset.name, crop, remedy)


def _shift_labels(batches: tf.data.Dataset, problem: Problem) -> tf.data.Dataset:
    """Subtracts labels_offset from the labels, which become int32.

    A result that is no class is an error, which is found before the cast could hide it.
    """

    @tf.autograph.experimental.do_not_convert
    def shift(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shifted = labels - problem.labels_offset
        # Some losses and all metrics would accept it. `naming_bad_records` words the error.
        tf.debugging.Assert(
            tf.reduce_all((shifted >= 0) & (shifted < problem.num_classes)), [labels]
        )
        return images, tf.cast(shifted, tf.int32)

    return batches.map(shift)


class LastBatch:
    """Takes batches from an iterator, and returns that of an abandoned step a second time.

    Otherwise a new iterator would have to seek the batch and fill its shuffle pool again, while all
    other workers wait.
    """

    def __init__(self, step: tf.Variable) -> None:
        """Starts without a batch; `step` is the training's step, int64 scalar."""
        self._step = step
        self._parts: list[tf.Variable] = []
        with tf.device("/CPU:0"):
            self._belongs_to = tf.Variable(_NONE, dtype=tf.int64, trainable=False)

    def take(self, batches: Iterator) -> tuple[tf.Tensor, ...]:
        """Returns the batch of the current step; call it in a compiled function.

        An operation of the step that may fail must depend on the batch: otherwise its failure could
        cancel the reading of the batch.

        Args:
          batches: an iterator of tf.data with a batch of static shapes for each step.
        """
        if not self._parts:
            with tf.init_scope(), tf.device("/CPU:0"):
                zeros = [tf.zeros(spec.shape, spec.dtype) for spec in batches.element_spec]
                self._parts = [tf.Variable(each, trainable=False) for each in zeros]
        with tf.device("/CPU:0"):
            return tf.cond(
                self._belongs_to.read_value() == self._step.read_value(),
                lambda: tuple(part.read_value() for part in self._parts),
                lambda: self._take_next(batches),
            )

    def holds(self, step: int) -> bool:
        """Whether it has the batch of a step."""
        return int(self._belongs_to) == step

    def forget(self) -> None:
        """Drops the batch; call it before batches are taken from another iterator."""
        self._belongs_to.assign(_NONE)

    def _take_next(self, batches: Iterator) -> tuple[tf.Tensor, ...]:
        batch = next(batches)
        # Both share the memory of the batch: nothing is copied.
        kept = [part.assign(value) for part, value in zip(self._parts, batch, strict=True)]
        with tf.control_dependencies(kept):  # not where the input fails
            is_kept = self._belongs_to.assign(self._step.read_value())
        with tf.control_dependencies([is_kept]):
            return tuple(map(tf.identity, batch))
