"""The 784-100-10 sigmoid net of the asynchronous MNIST example."""

from __future__ import annotations

import functools

import keras

from slim.nets.net_builder import NetBuilder


def mlp(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits: one hidden layer of 100 sigmoids, kernels from N(0, 1), no decay."""
    dense = functools.partial(
        add.dense, stddev=1.0, initializer=keras.initializers.RandomNormal, decay=False
    )
    net = keras.layers.Flatten(name="flatten")(images)
    net = dense(net, 100, "fc1", activation="sigmoid")
    return dense(net, num_classes, "logits", activation=None)
