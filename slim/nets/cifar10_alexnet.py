"""The net of TernGrad's CIFAR-10 experiments: TensorFlow's CIFAR-10 tutorial net on 24x24 crops."""

from __future__ import annotations

import keras

from slim.nets.layers import LocalResponseNormalization
from slim.nets.net_builder import NetBuilder


def cifar10_alexnet(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder
) -> keras.KerasTensor:
    """Returns the logits; no dropout, weight decay on fc3 and fc4 only."""
    net = add.conv(images, 64, 5, "conv1", stddev=0.05, decay=False)
    net = keras.layers.MaxPooling2D(3, 2, padding="same", name="pool1")(net)
    net = LocalResponseNormalization(name="norm1")(net)
    net = add.conv(net, 64, 5, "conv2", stddev=0.05, bias=0.1, decay=False)
    net = LocalResponseNormalization(name="norm2")(net)
    net = keras.layers.MaxPooling2D(3, 2, padding="same", name="pool2")(net)
    net = keras.layers.Flatten(name="flatten")(net)
    net = add.dense(net, 384, "fc3", stddev=0.04, bias=0.1)
    net = add.dense(net, 192, "fc4", stddev=0.04, bias=0.1)
    return add.dense(net, num_classes, "logits", stddev=1 / 192, activation=None, decay=False)
