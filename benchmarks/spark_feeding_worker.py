"""The worker of spark_feeding.py: trains LeNet on what it is given, and prints images a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from slim import input_pipeline
from slim.datasets import dataset_factory
from slim.nets import nets_factory
from slim.preprocessing import preprocessing_factory
from terngrad.spark.context import Context
from terngrad.spark.feed import Feed
from terngrad.training.classifier import Classifier

_RATE = 0.01
_SIDE = 28
_WARM_UP = 5  # steps


class Settings(NamedTuple):
    """What to train.

    Attributes:
      data_dir: folder of MNIST's records, for a worker without rows.
      batch_size: images in a step.
      steps: timed steps.
    """

    data_dir: str
    batch_size: int
    steps: int


def train(settings: Settings, context: Context) -> None:
    """Trains, and prints "images/s RATE" of the steps after the first ones."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    batches = _fed(context.feed, settings) if context.feed else _read(settings)
    model = nets_factory.build_net("lenet", num_classes=10, image_size=_SIDE, seed=1)
    classifier = Classifier(model)

    @tf.function(autograph=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        seed = tf.zeros([2], tf.int32)
        gradients, losses, _ = classifier.gradients(images, labels, seed)
        for variable, gradient in zip(classifier.variables, gradients, strict=True):
            variable.assign_sub(_RATE * gradient)
        return losses.entropy

    start = 0.0
    for i, (images, labels) in enumerate(batches):
        if i == _WARM_UP:
            start = time.perf_counter()
        if i == _WARM_UP + settings.steps:
            rate = settings.steps * settings.batch_size / (time.perf_counter() - start)
            print(f"images/s {rate}")
            return
        step(images, labels).numpy()


def _read(settings: Settings) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yields batches of the records, as the suite's programs read them."""
    dataset = dataset_factory.get_dataset("mnist", "train", settings.data_dir)
    preprocessing = preprocessing_factory.get_preprocessing("lenet", is_training=True)
    return iter(
        input_pipeline.training_batches(
            dataset, preprocessing, image_size=_SIDE, batch_size=settings.batch_size, seed=1
        )
    )


def _fed(feed: Feed, settings: Settings) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of the rows."""
    for batch in feed.batches(settings.batch_size):
        pixels = np.frombuffer(b"".join(batch.column("image").to_pylist()), np.uint8)
        images = pixels.reshape(-1, _SIDE, _SIDE, 1).astype(np.float32) / 255
        yield images, batch.column("label").to_numpy().astype(np.int32)
