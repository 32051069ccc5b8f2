"""Inception v4 and Inception-ResNet-v2, of one paper (arXiv 1602.07261), named as in TF-Slim."""

from __future__ import annotations

import keras

from slim.nets.inception_layers import (
    HALVE,
    STYLE,
    Rows,
    auxiliary_features,
    conv,
    convs,
    join,
    mixed,
    pooled,
    reduction_a,
    stem,
)
from slim.nets.net_builder import BATCH_NORM, XAVIER, NetBuilder, Scope, Style

# Of Inception-ResNet-v2.
_BLOCK_35: tuple[Rows, ...] = (
    (("Conv2d_1x1", 32),),
    (("Conv2d_0a_1x1", 32), ("Conv2d_0b_3x3", 32)),
    (("Conv2d_0a_1x1", 32), ("Conv2d_0b_3x3", 48), ("Conv2d_0c_3x3", 64)),
)
_BLOCK_17: tuple[Rows, ...] = (
    (("Conv2d_1x1", 192),),
    (("Conv2d_0a_1x1", 128), ("Conv2d_0b_1x7", 160), ("Conv2d_0c_7x1", 192)),
)
_BLOCK_8: tuple[Rows, ...] = (
    (("Conv2d_1x1", 192),),
    (("Conv2d_0a_1x1", 192), ("Conv2d_0b_1x3", 224), ("Conv2d_0c_3x1", 256)),
)


def inception_v4(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder
) -> list[keras.KerasTensor]:
    """Returns the logits of v4 and those of the auxiliary head, which is on Mixed_6h."""
    scope = Scope(add, "InceptionV4", STYLE)
    net = _stem(images, scope)
    for letter in "bcde":
        net = _inception_a(net, scope / f"Mixed_5{letter}")
    net = reduction_a(net, scope / "Mixed_6a", (192, 224, 256, 384))
    for letter in "bcdefgh":
        net = _inception_b(net, scope / f"Mixed_6{letter}")
    auxiliary = (scope / "AuxLogits").styled(initializer=XAVIER)
    features = auxiliary_features(net, scope / "AuxLogits", "Conv2d_2a")
    features = auxiliary.squeeze(features, "flatten")
    net = _reduction_b(net, scope / "Mixed_7a")
    for letter in "bcd":
        net = _inception_c(net, scope / f"Mixed_7{letter}")
    head = (scope / "Logits").styled(initializer=XAVIER)
    net = head.squeeze(pooled(net, head), "PreLogitsFlatten")
    return [
        head.dense(net, "Logits", num_classes),
        auxiliary.dense(features, "Aux_logits", num_classes),
    ]


def _stem(images: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    net = conv(images, scope, "Conv2d_1a_3x3", 32, **HALVE)
    net = conv(net, scope, "Conv2d_2a_3x3", 32, padding="valid")
    net = conv(net, scope, "Conv2d_2b_3x3", 64)

    inner = scope / "Mixed_3a"
    first = (inner / "Branch_0").max_pool(net, "MaxPool_0a_3x3", 3, **HALVE)
    second = conv(net, inner / "Branch_1", "Conv2d_0a_3x3", 96, **HALVE)
    net = join([first, second], inner)

    inner = scope / "Mixed_4a"
    first = conv(net, inner / "Branch_0", "Conv2d_0a_1x1", 64)
    first = conv(first, inner / "Branch_0", "Conv2d_1a_3x3", 96, padding="valid")
    rows = (("Conv2d_0a_1x1", 64), ("Conv2d_0b_1x7", 64), ("Conv2d_0c_7x1", 64))
    second = convs(net, inner / "Branch_1", rows)
    second = conv(second, inner / "Branch_1", "Conv2d_1a_3x3", 96, padding="valid")
    net = join([first, second], inner)

    inner = scope / "Mixed_5a"
    first = conv(net, inner / "Branch_0", "Conv2d_1a_3x3", 192, **HALVE)
    second = (inner / "Branch_1").max_pool(net, "MaxPool_1a_3x3", 3, **HALVE)
    return join([first, second], inner)


def _inception_a(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    return mixed(
        net,
        scope,
        (("Conv2d_0a_1x1", 96),),
        (("Conv2d_0a_1x1", 64), ("Conv2d_0b_3x3", 96)),
        (("Conv2d_0a_1x1", 64), ("Conv2d_0b_3x3", 96), ("Conv2d_0c_3x3", 96)),
        pool_filters=96,
    )


def _inception_b(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    return mixed(
        net,
        scope,
        (("Conv2d_0a_1x1", 384),),
        (("Conv2d_0a_1x1", 192), ("Conv2d_0b_1x7", 224), ("Conv2d_0c_7x1", 256)),
        (
            ("Conv2d_0a_1x1", 192),
            ("Conv2d_0b_7x1", 192),
            ("Conv2d_0c_1x7", 224),
            ("Conv2d_0d_7x1", 224),
            ("Conv2d_0e_1x7", 256),
        ),
        pool_filters=128,
    )


def _reduction_b(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    branches = [scope / f"Branch_{i}" for i in range(3)]
    first = conv(net, branches[0], "Conv2d_0a_1x1", 192)
    first = conv(first, branches[0], "Conv2d_1a_3x3", 192, **HALVE)
    rows = (("Conv2d_0a_1x1", 256), ("Conv2d_0b_1x7", 256), ("Conv2d_0c_7x1", 320))
    second = convs(net, branches[1], rows)
    second = conv(second, branches[1], "Conv2d_1a_3x3", 320, **HALVE)
    third = branches[2].max_pool(net, "MaxPool_1a_3x3", 3, **HALVE)
    return join([first, second, third], scope)


def _inception_c(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    branches = [scope / f"Branch_{i}" for i in range(4)]
    pools = branches[3].avg_pool(net, "AvgPool_0a_3x3", 3)
    second = conv(net, branches[1], "Conv2d_0a_1x1", 384)
    rows = (("Conv2d_0a_1x1", 384), ("Conv2d_0b_3x1", 448), ("Conv2d_0c_1x3", 512))
    third = convs(net, branches[2], rows)
    return join(
        [
            conv(net, branches[0], "Conv2d_0a_1x1", 256),
            conv(second, branches[1], "Conv2d_0b_1x3", 256),
            conv(second, branches[1], "Conv2d_0c_3x1", 256),
            conv(third, branches[2], "Conv2d_0d_1x3", 256),
            conv(third, branches[2], "Conv2d_0e_3x1", 256),
            conv(pools, branches[3], "Conv2d_0b_1x1", 256),
        ],
        scope,
    )


def inception_resnet_v2(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder
) -> list[keras.KerasTensor]:
    """Returns the logits of Inception-ResNet-v2 and of its auxiliary head, before Mixed_7a.

    TF-Slim decays its biases too; here, as in all nets of the suite, only kernels decay.
    """
    scope = Scope(add, "InceptionResnetV2", Style(XAVIER, BATCH_NORM))
    net = stem(images, scope)
    net = _mixed_5b(net, scope / "Mixed_5b")
    for i in range(1, 11):
        net = _residual(net, scope / "Repeat" / f"block35_{i}", _BLOCK_35, 0.17)
    net = reduction_a(net, scope / "Mixed_6a", (256, 256, 384, 384))
    for i in range(1, 21):
        net = _residual(net, scope / "Repeat_1" / f"block17_{i}", _BLOCK_17, 0.10)
    auxiliary = scope / "AuxLogits"
    features = auxiliary_features(net, auxiliary, "Conv2d_2a_5x5")
    features = auxiliary.squeeze(features, "flatten")
    net = _mixed_7a(net, scope / "Mixed_7a")
    for i in range(1, 10):
        net = _residual(net, scope / "Repeat_2" / f"block8_{i}", _BLOCK_8, 0.20)
    net = _residual(net, scope / "Block8", _BLOCK_8, 1.0, activation=None)
    net = conv(net, scope, "Conv2d_7b_1x1", 1536)
    head = scope / "Logits"
    net = head.squeeze(pooled(net, head), "flatten")
    return [
        head.dense(net, "Logits", num_classes),
        auxiliary.dense(features, "Logits", num_classes),
    ]


def _mixed_5b(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    return mixed(
        net,
        scope,
        (("Conv2d_1x1", 96),),
        (("Conv2d_0a_1x1", 48), ("Conv2d_0b_5x5", 64)),
        (("Conv2d_0a_1x1", 64), ("Conv2d_0b_3x3", 96), ("Conv2d_0c_3x3", 96)),
        pool_filters=64,
    )


def _mixed_7a(net: keras.KerasTensor, scope: Scope) -> keras.KerasTensor:
    branches = [scope / f"Branch_{i}" for i in range(4)]
    first = conv(net, branches[0], "Conv2d_0a_1x1", 256)
    first = conv(first, branches[0], "Conv2d_1a_3x3", 384, **HALVE)
    second = conv(net, branches[1], "Conv2d_0a_1x1", 256)
    second = conv(second, branches[1], "Conv2d_1a_3x3", 288, **HALVE)
    third = convs(net, branches[2], (("Conv2d_0a_1x1", 256), ("Conv2d_0b_3x3", 288)))
    third = conv(third, branches[2], "Conv2d_1a_3x3", 320, **HALVE)
    fourth = branches[3].max_pool(net, "MaxPool_1a_3x3", 3, **HALVE)
    return join([first, second, third, fourth], scope)


def _residual(
    net: keras.KerasTensor,
    scope: Scope,
    branches: tuple[Rows, ...],
    scale: float,
    activation: str | None = "relu",
) -> keras.KerasTensor:
    """Appends `scale` times the branches, brought to the channels of `net`, to `net`."""
    ends = [convs(net, scope / f"Branch_{i}", rows) for i, rows in enumerate(branches)]
    plain = {"activation": None, "normalize": False}
    up = conv(join(ends, scope), scope, "Conv2d_1x1", net.shape[-1], **plain)
    up = keras.layers.Rescaling(scale, name=f"{scope.name}.scale")(up)
    net = keras.layers.Add(name=f"{scope.name}.add")([net, up])
    return keras.layers.Activation(activation, name=f"{scope.name}.out")(net) if activation else net
