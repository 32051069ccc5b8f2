"""Layers and regularizers that Keras lacks or defines otherwise."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf


class CoveringConv2D(keras.layers.Conv2D):
    """A convolution whose kernel covers the whole input: a fully connected layer.

    On CPUs TensorFlow computes the matrix product much faster than the convolution: the gradients
    of AlexNet's fc6 (6 x 6 x 256 to 4096, batch 32) take 0.2 s in place of 6.8 s on 2 cores.
    """

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """See base class; from [B, H, W, C] and [H, W, C, filters] to [B, 1, 1, filters]."""
        covered = math.prod(kernel.shape[:-1])
        product = tf.reshape(inputs, [-1, covered]) @ tf.reshape(kernel, [covered, self.filters])
        return tf.reshape(product, [-1, 1, 1, self.filters])


class Dropout(keras.layers.Layer):
    """Sets a random share of the values to 0, and divides the others by `keep_prob`.

    The draw is a function of `salt` and of the seed that the net is called with. Unlike
    keras.layers.Dropout the layer holds no state, so a step can be repeated.
    """

    def __init__(self, keep_prob: float, salt: int, **kwargs: Any) -> None:
        """`keep_prob` in (0, 1]; `salt` (int32) differs between the layers of a net."""
        super().__init__(**kwargs)
        self.keep_prob = keep_prob
        self.salt = salt

    def call(self, values: tf.Tensor, seed: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Drops some of `values` (float) in training; `seed` is int32 [2]."""
        if not training or self.keep_prob == 1.0:
            return values
        seed = tf.bitwise.bitwise_xor(seed, [self.salt, 0])
        draws = tf.random.stateless_uniform(tf.shape(values), seed, alg="philox")
        return tf.where(draws < self.keep_prob, values / self.keep_prob, 0.0)


class LocalResponseNormalization(keras.layers.Layer):
    """x / (bias + alpha * sum of x^2 over the 2 * radius + 1 nearest channels) ^ beta.

    The defaults are those of the CIFAR-10 nets.
    """

    def __init__(
        self,
        radius: int = 4,
        *,
        bias: float = 1.0,
        alpha: float = 0.001 / 9,
        beta: float = 0.75,
        **kwargs: Any,
    ) -> None:
        """Takes the constants of the formula."""
        super().__init__(**kwargs)
        self.radius, self.bias, self.alpha, self.beta = radius, bias, alpha, beta

    def call(self, values: tf.Tensor) -> tf.Tensor:
        """Normalises float32 [B, H, W, C]."""
        return tf.nn.local_response_normalization(
            values, self.radius, self.bias, self.alpha, self.beta
        )


class WeightDecay(keras.regularizers.Regularizer):
    """rate * sum(w^2) / 2, whose gradient is rate * w; keras.regularizers.L2 is twice that."""

    def __init__(self, rate: float) -> None:
        """Takes the weight decay, at least 0."""
        self.rate = rate

    def __call__(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the loss of a kernel, a scalar."""
        return self.rate * tf.nn.l2_loss(weights)
