"""What stands in the place of a classifier where a step is made without this process."""

from __future__ import annotations

import tensorflow as tf

from terngrad.training.classifier import Classifier, Losses


class Bystander:
    """A classifier that computes nothing: the others' gradients are all that counts."""

    def __init__(self, classifier: Classifier) -> None:
        """Has the variables of a classifier."""
        self.variables = classifier.variables
        self.state = classifier.state

    def gradients(
        self, images: tf.Tensor, labels: tf.Tensor, dropout_seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], Losses, list[tf.Tensor]]:
        """Zeros, and the state as it is; see `Classifier.gradients`."""
        del images, labels, dropout_seed
        zero = tf.zeros([])
        gradients = [tf.zeros(v.shape) for v in self.variables]
        return gradients, Losses(zero, zero), [v.read_value() for v in self.state.values()]
