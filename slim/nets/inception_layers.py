"""Shared parts of the Inception nets: their style, chains of convolutions, and heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from slim.nets.net_builder import BATCH_NORM, HE, Initializer, Scope, Style

STYLE = Style(HE, BATCH_NORM)
HALVE = {"strides": 2, "padding": "valid"}

Rows = Sequence[tuple[str, int]]  # name and filters of convolutions, one after the other


def conv(
    net: keras.KerasTensor, scope: Scope, name: str, filters: int, **options: Any
) -> keras.KerasTensor:
    """Appends a convolution whose kernel's size is the end of its name, such as `Conv2d_0b_1x7`."""
    height, width = map(int, name.rpartition("_")[2].split("x"))
    return scope.conv(net, name, filters, (height, width), **options)


def convs(net: keras.KerasTensor, scope: Scope, rows: Rows) -> keras.KerasTensor:
    """Appends convolutions, one after the other."""
    for name, filters in rows:
        net = conv(net, scope, name, filters)
    return net


def join(branches: Sequence[keras.KerasTensor], scope: Scope) -> keras.KerasTensor:
    """Returns the channels of all branches, one branch after the other."""
    return keras.layers.Concatenate(name=f"{scope.name}.concat")(branches)


def mixed(
    net: keras.KerasTensor, scope: Scope, *chains: Rows, pool_filters: int, maximum: bool = False
) -> keras.KerasTensor:
    """Appends an Inception module: chains of convolutions side by side, the last one after pooling.

    Args:
      net: input of all branches.
      scope: the module's scope.
      chains: convolutions of Branch_0, Branch_1, and so on.
      pool_filters: filters of the 1x1 convolution after pooling, in the last branch.
      maximum: pooling takes the maximum instead of the mean.
    """
    branches = [convs(net, scope / f"Branch_{i}", rows) for i, rows in enumerate(chains)]
    last = scope / f"Branch_{len(chains)}"
    if maximum:
        pools = last.max_pool(net, "MaxPool_0a_3x3", 3)
    else:
        pools = last.avg_pool(net, "AvgPool_0a_3x3", 3)
    return join([*branches, conv(pools, last, "Conv2d_0b_1x1", pool_filters)], scope)


def stem(images: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    """Appends the first layers of Inception v3 and Inception-ResNet-v2."""
    valid = scope.styled(padding="valid")
    net = conv(images, valid, "Conv2d_1a_3x3", 32, strides=2)
    net = conv(net, valid, "Conv2d_2a_3x3", 32)
    net = conv(net, scope, "Conv2d_2b_3x3", 64)
    net = valid.max_pool(net, "MaxPool_3a_3x3", 3, 2)
    net = convs(net, valid, (("Conv2d_3b_1x1", 80), ("Conv2d_4a_3x3", 192)))
    return valid.max_pool(net, "MaxPool_5a_3x3", 3, 2)


def reduction_a(
    net: keras.KerasTensor,
    scope: Scope,
    filters: tuple[int, int, int, int],
    last_name: str = "Conv2d_1a_3x3",
) -> keras.KerasTensor:
    """Appends the module that leads from 35 x 35 to 17 x 17 positions.

    Args:
      net: input of all branches.
      scope: the module's scope.
      filters: k, l, m and n of table 1 in arXiv 1602.07261.
      last_name: name of the last convolution of the first two branches.
    """
    k, l, m, n = filters  # noqa: E741 (the paper's letters)
    branches = [scope / f"Branch_{i}" for i in range(3)]
    first = branches[0].conv(net, last_name, n, 3, **HALVE)
    second = convs(net, branches[1], (("Conv2d_0a_1x1", k), ("Conv2d_0b_3x3", l)))
    second = branches[1].conv(second, last_name, m, 3, **HALVE)
    third = branches[2].max_pool(net, "MaxPool_1a_3x3", 3, **HALVE)
    return join([first, second, third], scope)


def pooled(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    """Returns the features of a whole image [B, 1, 1, C], with dropout; `scope` is `Logits`."""
    net = scope.global_pool(net, "global_pool")
    return scope.dropout(net, "dropout")


def auxiliary_features(
    net: keras.KerasTensor,
    scope: Scope,
    name: str | None = None,
    initializer: Initializer | None = None,
) -> keras.KerasTensor:
    """Returns the features of the auxiliary head, [B, 1, 1, 768].

    Its last convolution sees 5 x 5 positions, those of a 299 x 299 image, or all of a smaller
    image's. A larger image has several such windows, which are averaged.

    Args:
      net: float32 [B, H, W, C], H and W at least 5.
      scope: the head's scope, `AuxLogits`.
      name: name of the last convolution; None = by its size, as `Conv2d_2a_5x5`.
      initializer: distribution of its kernel; None = that of the scope.
    """
    net = scope.avg_pool(net, "AvgPool_1a_5x5", 5, 3, "valid")
    net = conv(net, scope, "Conv2d_1b_1x1", 128)
    size = tuple(min(side, 5) for side in net.shape[1:3])
    name = name or f"Conv2d_2a_{size[0]}x{size[1]}"
    last = scope.styled(initializer=initializer) if initializer else scope
    net = last.conv(net, name, 768, size, padding="valid")
    return scope.global_pool(net, "global_pool")
