"""Precision and recall count each example once."""

import math

import numpy as np
import pytest
import tensorflow as tf

from inception.results import metrics

# The classes of each example from its largest logit to its smallest.
RANKING = [[3, 1, 4, 0, 5, 2], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
LOGITS = -np.argsort(RANKING, axis=1).astype(np.float32)


def hits(logits, labels):
    """(top 1, top 5) of float32 logits."""
    return tuple(metrics.count_hits(tf.constant(logits, tf.float32), tf.constant(labels)).numpy())


def test_the_first_class_counts_once_and_the_first_five_count_for_recall():
    assert hits(LOGITS, [3, 0, 5]) == (3, 3)
    assert hits(LOGITS, [1, 4, 1]) == (0, 3)
    assert hits(LOGITS, [2, 5, 0]) == (0, 0)


def test_a_net_that_says_the_same_of_all_classes_gains_only_chance():
    assert hits(np.zeros((10, 10)), np.arange(10, dtype=np.int32)) == (1, 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_hit_nothing(bad):
    assert hits([[0.0, bad, 0.0]], [1]) == (0, 0)
    assert hits([[1.0, bad, 0.0]], [0]) == (0, 0)


def test_fewer_than_five_classes_are_all_in_the_top_five():
    assert hits([[1.0, 0.0]], [1]) == (0, 1)


def test_the_smaller_last_batch_counts_by_its_examples():
    labels = tf.constant([3, 0, 0], tf.int32)
    batches = tf.data.Dataset.from_tensor_slices((LOGITS, labels)).batch(2)
    sizes = []
    found = metrics.measure(metrics.hit_counter(lambda images: images), batches, sizes.append)
    assert found == metrics.Metrics(2 / 3, 2 / 3, 3)
    assert sizes == [2, 1]


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no examples"):
        metrics.measure(metrics.count_hits, [])


def test_the_text_is_the_one_that_tools_read():
    text = str(metrics.Metrics(0.934, 0.996, 500))
    assert text == "precision @ 1 = 0.9340 recall @ 5 = 0.9960 [500 examples]"
