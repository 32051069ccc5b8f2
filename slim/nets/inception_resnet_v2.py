"""Inception-ResNet-v2 (arXiv 1602.07261) with TF-Slim's names."""

from __future__ import annotations

import keras

from slim.nets.inception_layers import (
    HALVE,
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
from slim.nets.net_builder import NetBuilder
from slim.nets.scope import BATCH_NORM, XAVIER, Scope, Style

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


def inception_resnet_v2(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder
) -> list[keras.KerasTensor]:
    """Returns the logits and those of the auxiliary head, which is before Mixed_7a.

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
