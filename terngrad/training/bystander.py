"""Replaces the classifier in steps that the other processes make without this one."""

from __future__ import annotations

import tensorflow as tf

from terngrad.training.classifier import Classifier, Losses


class Bystander:
    """A classifier that computes nothing: only the others' gradients count."""

    def __init__(self, classifier: Classifier) -> None:
        """Shares the variables of a classifier."""
        self.variables = classifier.variables
        self.state = classifier.state

    def gradients(
        self, images: tf.Tensor, labels: tf.Tensor, dropout_seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], Losses, list[tf.Tensor]]:
        """Returns zeros and the unchanged state; see `Classifier.gradients`."""
        del images, labels, dropout_seed
        zero = tf.zeros([])
        gradients = [tf.zeros(v.shape) for v in self.variables]
        return gradients, Losses(zero, zero), [v.read_value() for v in self.state.values()]
