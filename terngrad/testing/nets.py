"""A small net and batches for it."""

import keras
import tensorflow as tf

BATCH, CLASSES, SIDE = 16, 5, 8


def make_model(
    batch_norm: bool = False, penalty: float = 0.0, auxiliary: bool = False
) -> keras.Model:
    """Makes a small convolutional net with seeded weights.

    Args:
      batch_norm: whether a batch normalization follows the convolution.
      penalty: factor of the last kernel's L2 penalty.
      auxiliary: whether the model has a second output, the logits of a head on the convolution.

    Returns:
      A model from images [n, SIDE, SIDE, 1] to logits [n, CLASSES].
    """
    seeds = iter(range(10, 20))
    init = lambda: keras.initializers.TruncatedNormal(stddev=0.1, seed=next(seeds))
    images = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.Conv2D(4, 3, activation="relu", kernel_initializer=init(), name="conv")(images)
    if batch_norm:
        x = keras.layers.BatchNormalization(momentum=0.5, name="norm")(x)
    x = keras.layers.Flatten(name="flat")(x)
    decay = keras.regularizers.L2(penalty) if penalty else None
    logits = keras.layers.Dense(
        CLASSES, kernel_initializer=init(), kernel_regularizer=decay, name="logits"
    )
    if not auxiliary:
        return keras.Model(images, logits(x))
    head = keras.layers.Dense(CLASSES, kernel_initializer=init(), name="auxiliary.logits")
    return keras.Model(images, [logits(x), head(x)])


def make_batches() -> tf.data.Dataset:
    """Returns 8 random batches, repeated forever: images [BATCH, SIDE, SIDE, 1], labels [BATCH]."""
    images = tf.random.stateless_normal([8, BATCH, SIDE, SIDE, 1], [1, 0])
    labels = tf.random.stateless_uniform([8, BATCH], [1, 1], 0, CLASSES, tf.int32)
    return tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
