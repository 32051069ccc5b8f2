"""Precision @ 1 and recall @ 5 of a classifier."""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Fractions of the examples whose label has the largest logit, or one of the five largest."""

    precision_at_1: float
    recall_at_5: float
    examples: int

    def __str__(self) -> str:
        return (
            f"precision @ 1 = {self.precision_at_1:.4f} recall @ 5 = {self.recall_at_5:.4f} "
            f"[{self.examples} examples]"
        )


def count_hits(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Counts the examples with the label in the top 1 and in the top 5: int32 [2].

    Among equal logits the lower class ranks first, so a net with equal logits for all classes
    gains nothing. Logits with a NaN or an infinity never hit.

    Args:
      logits: float32 [B, classes].
      labels: int32 [B].
    """
    top = tf.math.top_k(logits, min(5, logits.shape[-1])).indices
    finite = tf.reduce_all(tf.math.is_finite(logits), axis=1, keepdims=True)
    hits = tf.cast((top == labels[:, tf.newaxis]) & finite, tf.int32)
    return tf.stack([tf.reduce_sum(hits[:, 0]), tf.reduce_sum(hits)])


def hit_counter(
    logits: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Compiles `count_hits` as a function of (images, labels).

    It reads the variables behind `logits` at every call, so it serves all checkpoints of a net.

    Args:
      logits: images float32 [B, H, W, C] -> logits float32 [B, classes].
    """
    return tf.function(
        lambda images, labels: count_hits(logits(images), labels), reduce_retracing=True
    )


def measure(
    count: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    batches: Iterable[tuple[tf.Tensor, tf.Tensor]],
    after_batch: Callable[[int], None] = lambda examples: None,
) -> Metrics:
    """Returns the metrics over all batches, smaller ones included.

    Args:
      count: from `hit_counter`.
      batches: (images float32 [B, H, W, C], labels int32 [B]).
      after_batch: called with the number of examples of each batch.

    Raises:
      ValueError: there are no examples.
    """
    hits, examples = np.zeros(2, np.int64), 0
    for images, labels in batches:
        hits += count(images, labels).numpy()
        examples += len(labels)
        after_batch(len(labels))
    if not examples:
        raise ValueError("there are no examples to evaluate")
    at_1, at_5 = hits / examples
    return Metrics(float(at_1), float(at_5), examples)
