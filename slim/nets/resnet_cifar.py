"""The residual net for CIFAR-10 (arXiv 1512.03385, section 4.2), with 20 layers."""

from __future__ import annotations

import keras

from slim.nets.net_builder import NetBuilder
from slim.nets.scope import HE, BatchNorm, Scope, Style

_FILTERS = (16, 32, 64)  # of a block's convolutions; each block but the first halves the image
_UNITS = 3  # of each block
_STYLE = Style(HE, BatchNorm(decay=0.9, epsilon=1e-5, scale=True))


def resnet_20(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits; shortcuts have no parameters (the paper's option A)."""
    scope = Scope(add, "resnet_20", _STYLE)
    net = scope.conv(images, "conv1", _FILTERS[0], 3)
    for block, filters in enumerate(_FILTERS, 1):
        for unit in range(1, _UNITS + 1):
            inner = scope / f"block{block}" / f"unit_{unit}"
            net = _unit(net, inner, filters, 2 if unit == 1 < block else 1)
    return scope.logits(scope.global_pool(net, "pool"), "logits", num_classes)


def _unit(net: keras.KerasTensor, scope: Scope, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = _shortcut(net, scope, filters, strides)
    net = scope.conv(net, "conv1", filters, 3, strides=strides)
    net = scope.conv(net, "conv2", filters, 3, activation=None)
    net = keras.layers.Add(name=f"{scope.name}.add")([shortcut, net])
    return keras.layers.Activation("relu", name=f"{scope.name}.relu")(net)


def _shortcut(
    net: keras.KerasTensor, scope: Scope, filters: int, strides: int
) -> keras.KerasTensor:
    """Skips positions, and adds channels of zeros."""
    if strides > 1:
        net = scope.max_pool(net, "shortcut", 1, strides)
    added = filters - net.shape[-1]
    return keras.ops.pad(net, [(0, 0)] * 3 + [(added // 2, added // 2)]) if added else net
