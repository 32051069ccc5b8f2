"""The nets by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras

from slim.nets import cifar10_alexnet, cifarnet, lenet, mlp
from slim.nets.net_builder import NetBuilder

BuildFn = Callable[[keras.KerasTensor, int, NetBuilder], keras.KerasTensor]


@dataclasses.dataclass(frozen=True)
class NetSpec:
    """Facts about a net that the programs need.

    Attributes:
      build: (images, num_classes, builder) -> logits.
      image_size: default height and width of the images in pixels.
      channels: channels of the images.
      preprocessing: name of the preprocessing the net is trained with.
      has_dropout: whether the model takes a dropout seed beside the images.
      min_image_size: smallest height and width that the net's pooling allows.
      logits_layer: name of the last layer.
    """

    build: BuildFn
    image_size: int
    channels: int
    preprocessing: str
    has_dropout: bool = False
    min_image_size: int = 1
    logits_layer: str = "logits"


NETS = {
    "lenet": NetSpec(lenet.lenet, 28, 1, "lenet", min_image_size=4),
    "lenet_slim": NetSpec(lenet.lenet_slim, 28, 1, "lenet", has_dropout=True, min_image_size=4),
    "cifarnet": NetSpec(cifarnet.cifarnet, 32, 3, "cifarnet", has_dropout=True, min_image_size=4),
    "cifar10_alexnet": NetSpec(cifar10_alexnet.cifar10_alexnet, 24, 3, "cifarnet"),
    "mlp": NetSpec(mlp.mlp, 28, 1, "unit"),
}


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
) -> keras.Model:
    """Builds a net; equal arguments give equal initial weights.

    Args:
      name: one of NETS.
      num_classes: number of logits.
      image_size: height and width of the images in pixels; None for the net's default.
      weight_decay: factor of sum(w^2) / 2 over the kernels that the net decays.
      dropout_keep_prob: share of the values that dropout keeps, in (0, 1].
      seed: seed of the initial weights.

    Returns:
      A model from images float32 [B, size, size, channels], and a dropout seed int32 [2] if the net
      has dropout, to logits float32 [B, num_classes].

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
    if spec.has_dropout:
        inputs.append(keras.Input(batch_shape=(2,), dtype="int32", name="dropout_seed"))
    builder = NetBuilder(weight_decay, dropout_keep_prob, seed, *inputs[1:])
    return keras.Model(inputs, spec.build(inputs[0], num_classes, builder), name=name)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
