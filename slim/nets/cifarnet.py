"""CifarNet as in TF-Slim: two convolutions with response normalization, two hidden layers."""

from __future__ import annotations

import keras

from slim.nets.layers import LocalResponseNormalization
from slim.nets.net_builder import NetBuilder


def cifarnet(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits; weight decay on fc3 and fc4 only, as published."""
    net = add.conv(images, 64, 5, "conv1", stddev=0.05, decay=False)
    net = keras.layers.MaxPooling2D(2, name="pool1")(net)
    net = LocalResponseNormalization(name="norm1")(net)
    net = add.conv(net, 64, 5, "conv2", stddev=0.05, decay=False)
    net = LocalResponseNormalization(name="norm2")(net)
    net = keras.layers.MaxPooling2D(2, name="pool2")(net)
    net = keras.layers.Flatten(name="flatten")(net)
    net = add.dense(net, 384, "fc3", stddev=0.04, bias=0.1)
    net = add.dropout(net, "dropout3")
    net = add.dense(net, 192, "fc4", stddev=0.04, bias=0.1)
    return add.dense(net, num_classes, "logits", stddev=1 / 192, activation=None, decay=False)
