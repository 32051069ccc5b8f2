"""OverFeat's fast net (Sermanet et al., arXiv 1312.6229) with TF-Slim's names."""

from __future__ import annotations

import keras

from slim.nets.net_builder import NetBuilder
from slim.nets.scope import XAVIER, Scope, Style, truncated_normal


def overfeat(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits.

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
