"""AlexNet: TernGrad's, TF-Slim's alexnet_v2 and the CIFAR-10 net; and OverFeat, a wider one."""

from __future__ import annotations

import keras

from slim.nets.net_builder import (
    BATCH_NORM,
    XAVIER,
    LocalResponseNormalization,
    NetBuilder,
    Scope,
    Style,
    truncated_normal,
)


def alexnet(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of AlexNet (Krizhevsky et al., NIPS 2012) with batch normalization.

    This is `alexnet` of TernGrad's code: two halves, `conv1_1` and `conv1_2` and so on, which meet
    before conv3 and before fc6, with response normalization after conv1 and conv2. Convolutions
    have batch normalization in place of a bias. fc6 sees 6 x 6 positions, those of a 224 x 224
    image; the features of a larger image's windows are averaged before the last layer.
    """
    scope = Scope(add, "alexnet", Style(truncated_normal(0.01), BATCH_NORM))
    halves = [_first_layers(images, scope, half) for half in (1, 2)]
    net = keras.layers.Concatenate(name="alexnet.pool2")(halves)
    halves = [_last_layers(net, scope, half) for half in (1, 2)]
    net = keras.layers.Concatenate(name="alexnet.pool5")(halves)
    top = Scope(add, "alexnet", Style(truncated_normal(0.005), bias=0.1))
    net = top.hidden_layers(net, 6)
    return top.styled(initializer=truncated_normal(0.01), bias=0.0).logits(
        net, "logits", num_classes
    )


def alexnet_v2(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of the AlexNet of "One weird trick" (arXiv 1404.5997), as in TF-Slim.

    It has one column and no normalization. fc6 sees 5 x 5 positions, those of a 224 x 224 image;
    the features of a larger image's windows are averaged before fc8, as with TF-Slim's
    `global_pool`.
    """
    scope = Scope(add, "alexnet_v2", Style(XAVIER, bias=0.1))
    net = scope.conv(images, "conv1", 64, 11, strides=4, padding="valid")
    net = scope.max_pool(net, "pool1", 3, 2, "valid")
    net = scope.conv(net, "conv2", 192, 5)
    net = scope.max_pool(net, "pool2", 3, 2, "valid")
    net = scope.conv(net, "conv3", 384, 3)
    net = scope.conv(net, "conv4", 384, 3)
    net = scope.conv(net, "conv5", 256, 3)
    net = scope.max_pool(net, "pool5", 3, 2, "valid")
    top = scope.styled(initializer=truncated_normal(0.005))
    net = top.hidden_layers(net, 5)
    return top.styled(bias=0.0).logits(net, "fc8", num_classes)


def _first_layers(images: keras.KerasTensor, scope: Scope, half: int) -> keras.KerasTensor:
    net = scope.conv(images, f"conv1_{half}", 48, 11, strides=4)
    net = _normalize_responses(net, f"alexnet.lrn1_{half}")
    net = scope.max_pool(net, f"pool1_{half}", 3, 2, "valid")
    net = scope.conv(net, f"conv2_{half}", 128, 5)
    net = _normalize_responses(net, f"alexnet.lrn2_{half}")
    return scope.max_pool(net, f"pool2_{half}", 3, 2, "valid")


def _last_layers(net: keras.KerasTensor, scope: Scope, half: int) -> keras.KerasTensor:
    net = scope.conv(net, f"conv3_{half}", 192, 3)
    net = scope.conv(net, f"conv4_{half}", 192, 3)
    net = scope.conv(net, f"conv5_{half}", 128, 3)
    return scope.max_pool(net, f"pool5_{half}", 3, 2, "valid")


def _normalize_responses(net: keras.KerasTensor, name: str) -> keras.KerasTensor:
    return LocalResponseNormalization(radius=2, bias=2.0, alpha=1e-4, beta=0.75, name=name)(net)


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


def overfeat(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of OverFeat's fast net (Sermanet et al., arXiv 1312.6229), as in TF-Slim.

    fc6 sees 6 x 6 positions, those of a 231 x 231 image. A larger image has several such windows;
    their features are averaged before fc8, as with TF-Slim's `global_pool`.
    """
    scope = Scope(add, "overfeat", Style(XAVIER))
    net = scope.conv(images, "conv1", 64, 11, strides=4, padding="valid")
    net = scope.max_pool(net, "pool1", 2, 2, "valid")
    net = scope.conv(net, "conv2", 256, 5, padding="valid")
    net = scope.max_pool(net, "pool2", 2, 2, "valid")
    net = scope.conv(net, "conv3", 512, 3)
    net = scope.conv(net, "conv4", 1024, 3)
    net = scope.conv(net, "conv5", 1024, 3)
    net = scope.max_pool(net, "pool5", 2, 2, "valid")
    top = scope.styled(initializer=truncated_normal(0.005), bias=0.1)
    net = top.hidden_layers(net, 6, units=3072)
    return top.styled(bias=0.0).logits(net, "fc8", num_classes)
