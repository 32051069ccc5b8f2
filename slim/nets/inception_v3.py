"""Inception v3 (arXiv 1512.00567) with TF-Slim's names."""

from __future__ import annotations

import keras

from slim.nets.inception_layers import (
    HALVE,
    STYLE,
    auxiliary_features,
    conv,
    convs,
    join,
    mixed,
    pooled,
    reduction_a,
    stem,
)
from slim.nets.net_builder import NetBuilder, Scope, truncated_normal


def inception_v3(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder
) -> list[keras.KerasTensor]:
    """Returns the logits and those of the auxiliary head, which is on Mixed_6e.

    Some published names break the pattern: those of two convolutions in Mixed_5c, of the 3x3
    convolutions in Mixed_6a that end in 1x1, and of one in Mixed_7b.
    """
    scope = Scope(add, "InceptionV3", STYLE)
    net = stem(images, scope)
    net = _mixed_5(net, scope / "Mixed_5b", 32)
    net = _mixed_5(net, scope / "Mixed_5c", 64, ("Conv2d_0b_1x1", "Conv_1_0c_5x5"))
    net = _mixed_5(net, scope / "Mixed_5d", 64)
    net = reduction_a(net, scope / "Mixed_6a", (64, 96, 96, 384), "Conv2d_1a_1x1")
    for letter, filters in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        net = _mixed_6(net, scope / f"Mixed_6{letter}", filters)
    auxiliary = _auxiliary_logits(net, scope / "AuxLogits", num_classes)
    net = _mixed_7a(net, scope / "Mixed_7a")
    net = _mixed_7(net, scope / "Mixed_7b", "Conv2d_0b_3x1")
    net = _mixed_7(net, scope / "Mixed_7c", "Conv2d_0c_3x1")
    head = scope / "Logits"
    return [head.logits(pooled(net, head), "Conv2d_1c_1x1", num_classes), auxiliary]


def _mixed_5(
    net: keras.KerasTensor,
    scope: Scope,
    pool_filters: int,
    names: tuple[str, str] = ("Conv2d_0a_1x1", "Conv2d_0b_5x5"),
) -> keras.KerasTensor:
    return mixed(
        net,
        scope,
        (("Conv2d_0a_1x1", 64),),
        ((names[0], 48), (names[1], 64)),
        (("Conv2d_0a_1x1", 64), ("Conv2d_0b_3x3", 96), ("Conv2d_0c_3x3", 96)),
        pool_filters=pool_filters,
    )


def _mixed_6(net: keras.KerasTensor, scope: Scope, filters: int) -> keras.KerasTensor:
    return mixed(
        net,
        scope,
        (("Conv2d_0a_1x1", 192),),
        (("Conv2d_0a_1x1", filters), ("Conv2d_0b_1x7", filters), ("Conv2d_0c_7x1", 192)),
        (
            ("Conv2d_0a_1x1", filters),
            ("Conv2d_0b_7x1", filters),
            ("Conv2d_0c_1x7", filters),
            ("Conv2d_0d_7x1", filters),
            ("Conv2d_0e_1x7", 192),
        ),
        pool_filters=192,
    )


def _mixed_7a(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    branches = [scope / f"Branch_{i}" for i in range(3)]
    first = conv(net, branches[0], "Conv2d_0a_1x1", 192)
    first = conv(first, branches[0], "Conv2d_1a_3x3", 320, **HALVE)
    rows = (("Conv2d_0a_1x1", 192), ("Conv2d_0b_1x7", 192), ("Conv2d_0c_7x1", 192))
    second = convs(net, branches[1], rows)
    second = conv(second, branches[1], "Conv2d_1a_3x3", 192, **HALVE)
    third = branches[2].max_pool(net, "MaxPool_1a_3x3", 3, **HALVE)
    return join([first, second, third], scope)


def _mixed_7(net: keras.KerasTensor, scope: Scope, second_name: str) -> keras.KerasTensor:
    branches = [scope / f"Branch_{i}" for i in range(4)]
    ends = [conv(net, branches[0], "Conv2d_0a_1x1", 320)]
    second = conv(net, branches[1], "Conv2d_0a_1x1", 384)
    ends += [conv(second, branches[1], name, 384) for name in ("Conv2d_0b_1x3", second_name)]
    third = convs(net, branches[2], (("Conv2d_0a_1x1", 448), ("Conv2d_0b_3x3", 384)))
    ends += [conv(third, branches[2], f"Conv2d_0{end}", 384) for end in ("c_1x3", "d_3x1")]
    pools = branches[3].avg_pool(net, "AvgPool_0a_3x3", 3)
    return join([*ends, conv(pools, branches[3], "Conv2d_0b_1x1", 192)], scope)


def _auxiliary_logits(net: keras.KerasTensor, scope: Scope, num_classes: int) -> keras.KerasTensor:
    net = auxiliary_features(net, scope, initializer=truncated_normal(0.01))
    last = scope.styled(initializer=truncated_normal(0.001))
    return last.logits(net, "Conv2d_2b_1x1", num_classes)
