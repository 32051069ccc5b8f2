"""Nets for small images: LeNet and a sigmoid net for MNIST, and CifarNet for CIFAR-10."""

from __future__ import annotations

import functools

import keras

from slim.nets.net_builder import LocalResponseNormalization, NetBuilder


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


def cifarnet(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of TF-Slim's CifarNet; weight decay on fc3 and fc4 only, as published."""
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


def mlp(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of the 784-100-10 sigmoid net of the asynchronous MNIST example.

    It has one hidden layer of 100 sigmoids, kernels from N(0, 1), and no decay.
    """
    dense = functools.partial(
        add.dense, stddev=1.0, initializer=keras.initializers.RandomNormal, decay=False
    )
    net = keras.layers.Flatten(name="flatten")(images)
    net = dense(net, 100, "fc1", activation="sigmoid")
    return dense(net, num_classes, "logits", activation=None)
