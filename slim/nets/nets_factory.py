"""Builds the nets of the catalog."""

from __future__ import annotations

import keras
import tensorflow as tf

from slim.nets.catalog import get_spec
from slim.nets.net_builder import NetBuilder


def variable_name(variable: keras.Variable) -> str:
    """Returns the name under which the suite knows a variable, such as `vgg_16/fc6/kernel`.

    Scopes are joined by "/", as in TF-Slim's names; see `Scope`.
    """
    return variable.path.replace(".", "/")


def named_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """Returns all variables of a net by name; see `variable_name`."""
    return {variable_name(v): v.value for v in model.variables}


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
