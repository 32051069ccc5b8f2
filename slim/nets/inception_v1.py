"""Inception v1, GoogLeNet (arXiv 1409.4842), with TF-Slim's names and batch normalization."""

from __future__ import annotations

import keras

from slim.nets.inception_layers import STYLE, conv, convs, mixed, pooled
from slim.nets.net_builder import NetBuilder, Scope, truncated_normal

# Filters: 1x1; 1x1 and 3x3; 1x1 and 3x3, the paper's 5x5; 1x1 after the pooling.
_MIXED_3 = {"b": (64, 96, 128, 16, 32, 32), "c": (128, 128, 192, 32, 96, 64)}
_MIXED_4 = {
    "b": (192, 96, 208, 16, 48, 64),
    "c": (160, 112, 224, 24, 64, 64),
    "d": (128, 128, 256, 24, 64, 64),
    "e": (112, 144, 288, 32, 64, 64),
    "f": (256, 160, 320, 32, 128, 128),
}
_MIXED_5 = {"b": (256, 160, 320, 32, 128, 128), "c": (384, 192, 384, 48, 128, 128)}


def inception_v1(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits; the paper's auxiliary heads are left out, as in TF-Slim and TernGrad."""
    scope = Scope(add, "InceptionV1", STYLE)
    base = scope.styled(initializer=truncated_normal(0.01))
    net = conv(images, base, "Conv2d_1a_7x7", 64, strides=2)
    net = base.max_pool(net, "MaxPool_2a_3x3", 3, 2)
    net = convs(net, base, (("Conv2d_2b_1x1", 64), ("Conv2d_2c_3x3", 192)))
    net = base.max_pool(net, "MaxPool_3a_3x3", 3, 2)
    net = _modules(net, base, "Mixed_3", _MIXED_3)
    net = base.max_pool(net, "MaxPool_4a_3x3", 3, 2)
    net = _modules(net, base, "Mixed_4", _MIXED_4)
    net = base.max_pool(net, "MaxPool_5a_2x2", 2, 2)
    net = _modules(net, base, "Mixed_5", _MIXED_5)
    head = scope / "Logits"
    return head.logits(pooled(net, head), "Conv2d_0c_1x1", num_classes)


def _modules(
    net: keras.KerasTensor, base: Scope, name: str, filters: dict[str, tuple[int, ...]]
) -> keras.KerasTensor:
    for letter, (one, reduce_1, three_1, reduce_2, three_2, pool) in filters.items():
        last = "Conv2d_0a_3x3" if name + letter == "Mixed_5b" else "Conv2d_0b_3x3"  # as published
        net = mixed(
            net,
            base / f"{name}{letter}",
            (("Conv2d_0a_1x1", one),),
            (("Conv2d_0a_1x1", reduce_1), ("Conv2d_0b_3x3", three_1)),
            (("Conv2d_0a_1x1", reduce_2), (last, three_2)),
            pool_filters=pool,
            maximum=True,
        )
    return net
