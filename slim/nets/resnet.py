"""Residual nets: v1 (arXiv 1512.03385), pre-activation v2 (1603.05027), and resnet_20 for CIFAR-10.

v1 and v2 have TF-Slim's names.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

from slim.nets.net_builder import HE, BatchNorm, NetBuilder, Scope, Style

UNITS = {  # depth -> units of each block
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
_FILTERS = (64, 128, 256, 512)  # of a block's bottlenecks; its units have four times as many
_STRIDES = (2, 2, 2, 1)  # of a block's last unit; He et al. stride in the next block's first
_STYLE = Style(HE, BatchNorm(decay=0.997, epsilon=1e-5, scale=True))

# Of resnet_20.
_FILTERS_20 = (16, 32, 64)  # of a block's convolutions; each block but the first halves the image
_UNITS_20 = 3  # of each block
_STYLE_20 = Style(HE, BatchNorm(decay=0.9, epsilon=1e-5, scale=True))

_Unit = Callable[[keras.KerasTensor, Scope, int, int], keras.KerasTensor]


def resnet_v1(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder, *, depth: int
) -> keras.KerasTensor:
    """Returns the logits of the original residual net; `depth` is one of UNITS."""
    scope = Scope(add, f"resnet_v1_{depth}", _STYLE)
    net = _strided_conv(images, scope, "conv1", 64, 7, 2)
    net = scope.max_pool(net, "pool1", 3, 2)
    net = _blocks(net, scope, depth, _unit_v1)
    return scope.logits(scope.global_pool(net, "pool5"), "logits", num_classes)


def resnet_v2(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder, *, depth: int
) -> keras.KerasTensor:
    """Returns the logits of the residual net that normalizes before its convolutions."""
    scope = Scope(add, f"resnet_v2_{depth}", _STYLE)
    plain = {"activation": None, "normalize": False}  # the first unit normalizes
    net = _strided_conv(images, scope, "conv1", 64, 7, 2, **plain)
    net = scope.max_pool(net, "pool1", 3, 2)
    net = _blocks(net, scope, depth, _unit_v2)
    net = scope.batch_norm(net, "postnorm")
    return scope.logits(scope.global_pool(net, "pool5"), "logits", num_classes)


def _blocks(net: keras.KerasTensor, scope: Scope, depth: int, add_unit: _Unit) -> keras.KerasTensor:
    blocks = zip(UNITS[depth], _FILTERS, _STRIDES, strict=True)
    for block, (units, filters, strides) in enumerate(blocks, 1):
        for unit in range(1, units + 1):
            inner = scope / f"block{block}" / f"unit_{unit}"
            net = add_unit(net, inner, filters, strides if unit == units else 1)
    return net


def _unit_v1(net: keras.KerasTensor, scope: Scope, filters: int, strides: int) -> keras.KerasTensor:
    scope /= "bottleneck_v1"
    if net.shape[-1] == 4 * filters:
        shortcut = _subsample(net, scope, strides)
    else:
        shortcut = scope.conv(net, "shortcut", 4 * filters, 1, strides=strides, activation=None)
    net = scope.conv(net, "conv1", filters, 1)
    net = _strided_conv(net, scope, "conv2", filters, 3, strides)
    net = scope.conv(net, "conv3", 4 * filters, 1, activation=None)
    net = keras.layers.Add(name=f"{scope.name}.add")([shortcut, net])
    return keras.layers.Activation("relu", name=f"{scope.name}.relu")(net)


def _unit_v2(net: keras.KerasTensor, scope: Scope, filters: int, strides: int) -> keras.KerasTensor:
    scope /= "bottleneck_v2"
    plain = {"activation": None, "normalize": False}
    normalized = scope.batch_norm(net, "preact")
    if net.shape[-1] == 4 * filters:
        shortcut = _subsample(net, scope, strides)
    else:
        shortcut = scope.conv(normalized, "shortcut", 4 * filters, 1, strides=strides, **plain)
    net = scope.conv(normalized, "conv1", filters, 1)
    net = _strided_conv(net, scope, "conv2", filters, 3, strides)
    net = scope.conv(net, "conv3", 4 * filters, 1, **plain)
    return keras.layers.Add(name=f"{scope.name}.add")([shortcut, net])


def _strided_conv(
    net: keras.KerasTensor,
    scope: Scope,
    name: str,
    filters: int,
    size: int,
    strides: int,
    **options: object,
) -> keras.KerasTensor:
    """Appends a convolution whose strides skip positions of the one with strides 1.

    SAME padding with strides 2 would begin at another position for even sizes than for odd ones.
    """
    if strides > 1:
        before = (size - 1) // 2
        padding = ((before, size - 1 - before),) * 2
        net = keras.layers.ZeroPadding2D(padding, name=f"{scope.name}.{name}.pad")(net)
        options["padding"] = "valid"
    return scope.conv(net, name, filters, size, strides=strides, **options)


def _subsample(net: keras.KerasTensor, scope: Scope, strides: int) -> keras.KerasTensor:
    return net if strides == 1 else scope.max_pool(net, "shortcut", 1, strides)


def resnet_20(images: keras.KerasTensor, num_classes: int, add: NetBuilder) -> keras.KerasTensor:
    """Returns the logits of the net for CIFAR-10 (arXiv 1512.03385, section 4.2), with 20 layers.

    Its shortcuts have no parameters (the paper's option A).
    """
    scope = Scope(add, "resnet_20", _STYLE_20)
    net = scope.conv(images, "conv1", _FILTERS_20[0], 3)
    for block, filters in enumerate(_FILTERS_20, 1):
        for unit in range(1, _UNITS_20 + 1):
            inner = scope / f"block{block}" / f"unit_{unit}"
            net = _unit_20(net, inner, filters, 2 if unit == 1 < block else 1)
    return scope.logits(scope.global_pool(net, "pool"), "logits", num_classes)


def _unit_20(net: keras.KerasTensor, scope: Scope, filters: int, strides: int) -> keras.KerasTensor:
    shortcut = _shortcut_20(net, scope, filters, strides)
    net = scope.conv(net, "conv1", filters, 3, strides=strides)
    net = scope.conv(net, "conv2", filters, 3, activation=None)
    net = keras.layers.Add(name=f"{scope.name}.add")([shortcut, net])
    return keras.layers.Activation("relu", name=f"{scope.name}.relu")(net)


def _shortcut_20(
    net: keras.KerasTensor, scope: Scope, filters: int, strides: int
) -> keras.KerasTensor:
    """Skips positions, and adds channels of zeros."""
    if strides > 1:
        net = scope.max_pool(net, "shortcut", 1, strides)
    added = filters - net.shape[-1]
    return keras.ops.pad(net, [(0, 0)] * 3 + [(added // 2, added // 2)]) if added else net
