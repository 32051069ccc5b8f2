"""The suite's nets for Keras' fit."""

import keras
import tensorflow as tf

from slim.nets import nets_factory


class _DropoutSeed(keras.layers.Layer):
    """Gives dropout another seed at each step, as the suite does.

    With the same seed at each step gradients are denser, and so are their codes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = keras.random.SeedGenerator(1)

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Returns int32 [2]."""
        del images  # Keras calls no layer without an input
        return tf.cast(self._generator.next(), tf.int32)


def build_keras_net(
    name: str, *, num_classes: int, dropout_keep_prob: float, weight_decay: float = 0.0
) -> keras.Model:
    """Returns a net of images alone; for the arguments see `nets_factory.build_net`."""
    net = nets_factory.build_net(
        name,
        num_classes=num_classes,
        dropout_keep_prob=dropout_keep_prob,
        weight_decay=weight_decay,
    )
    images, *seed = net.inputs
    return keras.Model(images, net([images, _DropoutSeed()(images)] if seed else images))
