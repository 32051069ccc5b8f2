"""The nets by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from slim.nets import (
    alexnet,
    cifar10_alexnet,
    cifarnet,
    inception_resnet_v2,
    inception_v1,
    inception_v2,
    inception_v3,
    inception_v4,
    lenet,
    mlp,
    overfeat,
    resnet,
    vgg,
)
from slim.nets.inception_layers import AUXILIARY_WEIGHT
from slim.nets.net_builder import NetBuilder

BuildFn = Callable[
    [keras.KerasTensor, int, NetBuilder], keras.KerasTensor | list[keras.KerasTensor]
]


@dataclasses.dataclass(frozen=True)
class NetSpec:
    """Facts about a net that the programs need.

    Attributes:
      build: (images, num_classes, builder) -> logits, or a list of them: first the net's, then
        those of its auxiliary heads.
      image_size: default height and width of the images in pixels.
      channels: channels of the images.
      preprocessing: name of the preprocessing the net is trained with.
      has_dropout: whether the model takes a dropout seed beside the images.
      min_image_size: smallest height and width that the net's convolutions and pooling allow.
      logits_layers: scopes of the last layers, in the order of the outputs; see `variable_name`.
      auxiliary_weights: weight in the loss of each auxiliary head's cross entropy.
      dropout_keep_prob: share of the values that dropout keeps, as published.
      label_smoothing: share of each label's weight that is spread over all classes, as published.
    """

    build: BuildFn
    image_size: int
    channels: int
    preprocessing: str
    has_dropout: bool = False
    min_image_size: int = 1
    logits_layers: tuple[str, ...] = ("logits",)
    auxiliary_weights: tuple[float, ...] = ()
    dropout_keep_prob: float = 0.5
    label_smoothing: float = 0.0


def _inception(build: BuildFn, image_size: int, *logits_layers: str, **facts: object) -> NetSpec:
    auxiliary_weights = (AUXILIARY_WEIGHT,) * (len(logits_layers) - 1)
    # Smaller images leave no position, or no room for the auxiliary head's 5 x 5 pooling.
    min_image_size = 107 if auxiliary_weights else 32
    return NetSpec(
        build,
        image_size,
        3,
        "inception",
        has_dropout=True,
        min_image_size=min_image_size,
        logits_layers=logits_layers,
        auxiliary_weights=auxiliary_weights,
        dropout_keep_prob=0.8,
        **facts,
    )


def _large(build: BuildFn, image_size: int, min_image_size: int, logits_layer: str) -> NetSpec:
    return NetSpec(
        build,
        image_size,
        3,
        "vgg",
        has_dropout=True,
        min_image_size=min_image_size,
        logits_layers=(logits_layer,),
    )


def _resnets(build: Callable[..., keras.KerasTensor], version: str) -> dict[str, NetSpec]:
    return {
        f"{version}_{depth}": NetSpec(
            functools.partial(build, depth=depth),
            224,
            3,
            "vgg",
            min_image_size=32,
            logits_layers=(f"{version}_{depth}/logits",),
        )
        for depth in resnet.UNITS
    }


_INCEPTION_V1 = _inception(inception_v1.inception_v1, 224, "InceptionV1/Logits/Conv2d_0c_1x1")

NETS = {
    "lenet": NetSpec(lenet.lenet, 28, 1, "lenet", min_image_size=4),
    "lenet_slim": NetSpec(lenet.lenet_slim, 28, 1, "lenet", has_dropout=True, min_image_size=4),
    "cifarnet": NetSpec(cifarnet.cifarnet, 32, 3, "cifarnet", has_dropout=True, min_image_size=4),
    "cifar10_alexnet": NetSpec(cifar10_alexnet.cifar10_alexnet, 24, 3, "cifarnet"),
    "mlp": NetSpec(mlp.mlp, 28, 1, "unit"),
    "alexnet": _large(alexnet.alexnet, 224, 217, "alexnet/logits"),
    "alexnet_v2": _large(alexnet.alexnet_v2, 224, 195, "alexnet_v2/fc8"),
    "overfeat": _large(overfeat.overfeat, 231, 231, "overfeat/fc8"),
    **{
        name: _large(functools.partial(vgg.vgg, name=name), 224, 224, f"{name}/fc8")
        for name in vgg.CONVOLUTIONS
    },
    "inception_v1": _INCEPTION_V1,
    "googlenet": _INCEPTION_V1,
    "inception_v2": _inception(inception_v2.inception_v2, 224, "InceptionV2/Logits/Conv2d_1c_1x1"),
    "inception_v3": _inception(
        inception_v3.inception_v3,
        299,
        "InceptionV3/Logits/Conv2d_1c_1x1",
        "InceptionV3/AuxLogits/Conv2d_2b_1x1",
        label_smoothing=0.1,
    ),
    "inception_v4": _inception(
        inception_v4.inception_v4,
        299,
        "InceptionV4/Logits/Logits",
        "InceptionV4/AuxLogits/Aux_logits",
    ),
    "inception_resnet_v2": _inception(
        inception_resnet_v2.inception_resnet_v2,
        299,
        "InceptionResnetV2/Logits/Logits",
        "InceptionResnetV2/AuxLogits/Logits",
    ),
    **_resnets(resnet.resnet_v1, "resnet_v1"),
    **_resnets(resnet.resnet_v2, "resnet_v2"),
}


def variable_name(variable: keras.Variable) -> str:
    """Returns the name under which the suite knows a variable, such as `vgg_16/fc6/kernel`.

    Scopes are joined by "/", as in TF-Slim's names; see `Scope`.
    """
    return variable.path.replace(".", "/")


def named_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns all variables of a net by name; see `variable_name`."""
    return {variable_name(v): v.value for v in model.variables}


def get_spec(name: str) -> NetSpec:
    """Returns the net's entry; ValueError lists the allowed names."""
    if name not in NETS:
        raise ValueError(f"unknown net {name!r}: allowed are {', '.join(sorted(NETS))}")
    return NETS[name]


def build_net(
    name: str,
    *,
    num_classes: int,
    image_size: int | None = None,
    weight_decay: float = 0.0,
    dropout_keep_prob: float = 1.0,
    seed: int = 1,
    for_training: bool = True,
) -> keras.Model:
    """Builds a net; equal arguments give equal initial weights.

    Args:
      name: one of NETS.
      num_classes: number of logits.
      image_size: height and width of the images in pixels; None for the net's default.
      weight_decay: factor of sum(w^2) / 2 over the kernels that the net decays.
      dropout_keep_prob: share of the values that dropout keeps, in (0, 1].
      seed: seed of the initial weights.
      for_training: False leaves out dropout and the auxiliary heads.

    Returns:
      A model from images float32 [B, size, size, channels], and a dropout seed int32 [2] if the net
      has dropout, to logits float32 [B, num_classes]. With auxiliary heads the outputs are a
      list of logits, first the net's.

    Raises:
      ValueError: a value is not allowed.
    """
    spec = get_spec(name)
    size = spec.image_size if image_size is None else image_size
    _require(num_classes >= 2, f"num_classes must be at least 2, got {num_classes}")
    _require(
        size >= spec.min_image_size,
        f"image_size of {name} must be at least {spec.min_image_size} pixels, got {size}",
    )
    _require(weight_decay >= 0, f"weight_decay must not be negative, got {weight_decay}")
    _require(
        0 < dropout_keep_prob <= 1, f"dropout_keep_prob must be in (0, 1], got {dropout_keep_prob}"
    )
    inputs = [keras.Input((size, size, spec.channels), name="images")]
    if spec.has_dropout and for_training:
        inputs.append(keras.Input(batch_shape=(2,), dtype="int32", name="dropout_seed"))
    builder = NetBuilder(weight_decay, dropout_keep_prob, seed, *inputs[1:])
    outputs = spec.build(inputs[0], num_classes, builder)
    if spec.auxiliary_weights and not for_training:
        outputs = outputs[0]
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], outputs, name=name)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
