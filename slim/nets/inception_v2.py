"""Inception v2, BN-Inception (arXiv 1502.03167), with TF-Slim's names."""

from __future__ import annotations

import functools

import keras

from slim.nets.inception_layers import STYLE, conv, convs, join, pooled
from slim.nets.net_builder import NetBuilder, Scope, layer_seed, truncated_normal

# Filters: 1x1; 1x1 and 3x3; 1x1 and twice 3x3; 1x1 after the pooling.
_MIXED_3 = {"b": (64, 64, 64, 64, 96, 32), "c": (64, 64, 96, 64, 96, 64)}
_MIXED_4 = {
    "b": (224, 64, 96, 96, 128, 128),
    "c": (192, 96, 128, 96, 128, 128),
    "d": (160, 128, 160, 128, 160, 96),
    "e": (96, 128, 192, 160, 192, 96),
}
_MIXED_5 = {"b": (352, 192, 320, 160, 224, 128), "c": (352, 192, 320, 192, 224, 128)}

_REDUCE = {"initializer": truncated_normal(0.09)}  # of 1x1 before 3x3
_AFTER_POOL = {"initializer": truncated_normal(0.1)}


def inception_v2(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits.

    The first layer is a separable convolution with a bias. As published it has neither batch
    normalization nor weight decay.
    """
    scope = Scope(add, "InceptionV2", STYLE)
    net = _first_layer(images, scope, "Conv2d_1a_7x7")
    net = scope.max_pool(net, "MaxPool_2a_3x3", 3, 2)
    net = conv(net, scope.styled(**_AFTER_POOL), "Conv2d_2b_1x1", 64)
    net = conv(net, scope, "Conv2d_2c_3x3", 192)
    net = scope.max_pool(net, "MaxPool_3a_3x3", 3, 2)
    net = _modules(net, scope, "Mixed_3", _MIXED_3)
    net = _halved(net, scope / "Mixed_4a", (128, 160, 64, 96))
    net = _modules(net, scope, "Mixed_4", _MIXED_4)
    net = _halved(net, scope / "Mixed_5a", (128, 192, 192, 256))
    net = _modules(net, scope, "Mixed_5", _MIXED_5)
    head = scope / "Logits"
    return head.logits(pooled(net, head), "Conv2d_1c_1x1", num_classes)


def _first_layer(images: keras.KerasTensor, scope: Scope, name: str) -> keras.KerasTensor:
    full_name = f"{scope.name}.{name}"
    seed_of = lambda kernel: layer_seed(scope.add.seed, f"{full_name}.{kernel}")
    wide = functools.partial(keras.initializers.TruncatedNormal, stddev=1.0)
    return keras.layers.SeparableConv2D(
        64,
        7,
        2,
        "same",
        depth_multiplier=8,
        activation="relu",
        depthwise_initializer=wide(seed=seed_of("depthwise_kernel")),
        pointwise_initializer=wide(seed=seed_of("pointwise_kernel")),
        name=full_name,
    )(images)


def _modules(
    net: keras.KerasTensor, base: Scope, name: str, filters: dict[str, tuple[int, ...]]
) -> keras.KerasTensor:
    for letter, (one, reduce_1, three_1, reduce_2, three_2, pool) in filters.items():
        scope = base / f"{name}{letter}"
        branches = [scope / f"Branch_{i}" for i in range(4)]
        first = conv(net, branches[0], "Conv2d_0a_1x1", one)
        second = conv(net, branches[1].styled(**_REDUCE), "Conv2d_0a_1x1", reduce_1)
        second = conv(second, branches[1], "Conv2d_0b_3x3", three_1)
        third = conv(net, branches[2].styled(**_REDUCE), "Conv2d_0a_1x1", reduce_2)
        rows = (("Conv2d_0b_3x3", three_2), ("Conv2d_0c_3x3", three_2))
        third = convs(third, branches[2], rows)
        if name + letter == "Mixed_5c":
            fourth = branches[3].max_pool(net, "MaxPool_0a_3x3", 3)
        else:
            fourth = branches[3].avg_pool(net, "AvgPool_0a_3x3", 3)
        fourth = conv(fourth, branches[3].styled(**_AFTER_POOL), "Conv2d_0b_1x1", pool)
        net = join([first, second, third, fourth], scope)
    return net


def _halved(
    net: keras.KerasTensor, scope: Scope, filters: tuple[int, int, int, int]
) -> keras.KerasTensor:
    """Appends a module that halves height and width."""
    branches = [scope / f"Branch_{i}" for i in range(3)]
    reduce_0, three_0, reduce_1, three_1 = filters
    first = conv(net, branches[0].styled(**_REDUCE), "Conv2d_0a_1x1", reduce_0)
    first = conv(first, branches[0], "Conv2d_1a_3x3", three_0, strides=2)
    second = conv(net, branches[1].styled(**_REDUCE), "Conv2d_0a_1x1", reduce_1)
    second = conv(second, branches[1], "Conv2d_0b_3x3", three_1)
    second = conv(second, branches[1], "Conv2d_1a_3x3", three_1, strides=2)
    return join([first, second, branches[2].max_pool(net, "MaxPool_1a_3x3", 3, 2)], scope)
