"""LeNet for MNIST, as in TernGrad's experiments and as in TF-Slim."""

from __future__ import annotations

import keras

from slim.nets.net_builder import NetBuilder


def lenet(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of the LeNet of TernGrad's MNIST experiments: 20/50/500, no dropout."""
    net = add.conv(images, 20, 5, "conv1", stddev=0.05)
    net = keras.layers.MaxPooling2D(2, name="pool1")(net)
    net = add.conv(net, 50, 5, "conv2", stddev=0.05)
    net = keras.layers.MaxPooling2D(2, name="pool2")(net)
    net = keras.layers.Flatten(name="flatten")(net)
    net = add.dense(net, 500, "fc3", stddev=0.048)
    return add.dense(net, num_classes, "logits", stddev=0.0767, activation=None)


def lenet_slim(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of TF-Slim's `lenet`: 32/64/1024, with dropout."""
    net = add.conv(images, 32, 5, "conv1", stddev=0.1)
    net = keras.layers.MaxPooling2D(2, name="pool1")(net)
    net = add.conv(net, 64, 5, "conv2", stddev=0.1)
    net = keras.layers.MaxPooling2D(2, name="pool2")(net)
    net = keras.layers.Flatten(name="flatten")(net)
    net = add.dense(net, 1024, "fc3", stddev=0.1)
    net = add.dropout(net, "dropout3")
    return add.dense(net, num_classes, "logits", stddev=0.1, activation=None)
