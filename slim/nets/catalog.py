"""The nets by name, with the properties that programs need; TensorFlow is not loaded.

Their modules are loaded when a net is built.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

    from slim.nets.net_builder import NetBuilder

_AUXILIARY_WEIGHT = 0.4  # of an auxiliary head's cross entropy in the loss, as published

BuildFn = Callable[
    ["keras.KerasTensor", int, "NetBuilder"], "keras.KerasTensor | list[keras.KerasTensor]"
]


@dataclasses.dataclass(frozen=True)
class NetSpec:
    """The properties of a net that programs need.

    Attributes:
      build: (images, num_classes, builder) -> logits, or a list of them: first the net's, then
        those of its auxiliary heads.
      image_size: default height and width of the images in pixels.
      channels: channels of the images.
      preprocessing: name of the preprocessing that the net is trained with by default.
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

    @property
    def sensible_image_size(self) -> int:
        """Height and width below which little is left of an image after the net's strides."""
        return max(self.min_image_size, self.image_size // 2)


def _build_fn(module: str, function: str = "", **arguments: object) -> BuildFn:
    """Returns the function that builds a net; its module is loaded when it is called.

    Args:
      module: name of the module in slim/nets.
      function: name of the function; "" = that of the module.
      arguments: further arguments of the function.
    """

    def build(
        images: keras.KerasTensor, num_classes: int, builder: NetBuilder
    ) -> keras.KerasTensor | list[keras.KerasTensor]:
        found = getattr(importlib.import_module(f"slim.nets.{module}"), function or module)
        return found(images, num_classes, builder, **arguments)

    return build


def _inception(build: BuildFn, image_size: int, *logits_layers: str, **settings: object) -> NetSpec:
    auxiliary_weights = (_AUXILIARY_WEIGHT,) * (len(logits_layers) - 1)
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
        **settings,
    )


def _large(
    build: BuildFn,
    image_size: int,
    min_image_size: int,
    logits_layer: str,
    preprocessing: str = "vgg",
) -> NetSpec:
    return NetSpec(
        build,
        image_size,
        3,
        preprocessing,
        has_dropout=True,
        min_image_size=min_image_size,
        logits_layers=(logits_layer,),
    )


def _resnets(version: str) -> dict[str, NetSpec]:
    # TF-Slim's programs choose vgg for v2, too. Its published weights of v2 need "inception".
    return {
        f"{version}_{depth}": NetSpec(
            _build_fn("resnet", version, depth=depth),
            224,
            3,
            "vgg",
            min_image_size=32,
            logits_layers=(f"{version}_{depth}/logits",),
        )
        for depth in (50, 101, 152, 200)
    }


_INCEPTION_V1 = _inception(_build_fn("inception_v1"), 224, "InceptionV1/Logits/Conv2d_0c_1x1")

NETS = {
    "lenet": NetSpec(_build_fn("small_nets", "lenet"), 28, 1, "lenet", min_image_size=4),
    "lenet_slim": NetSpec(
        _build_fn("small_nets", "lenet_slim"), 28, 1, "lenet", has_dropout=True, min_image_size=4
    ),
    "cifarnet": NetSpec(
        _build_fn("small_nets", "cifarnet"), 32, 3, "cifarnet", has_dropout=True, min_image_size=4
    ),
    "cifar10_alexnet": NetSpec(_build_fn("alexnet", "cifar10_alexnet"), 24, 3, "cifarnet"),
    "resnet_20": NetSpec(
        _build_fn("resnet", "resnet_20"), 32, 3, "cifarnet", logits_layers=("resnet_20/logits",)
    ),
    "mlp": NetSpec(_build_fn("small_nets", "mlp"), 28, 1, "unit"),
    "alexnet": _large(_build_fn("alexnet"), 224, 217, "alexnet/logits", "alexnet"),
    "alexnet_v2": _large(_build_fn("alexnet", "alexnet_v2"), 224, 195, "alexnet_v2/fc8"),
    "overfeat": _large(_build_fn("alexnet", "overfeat"), 231, 231, "overfeat/fc8"),
    **{
        name: _large(_build_fn("vgg", name=name), 224, 224, f"{name}/fc8")
        for name in ("vgg_a", "vgg_16", "vgg_19")
    },
    "inception_v1": _INCEPTION_V1,
    "googlenet": _INCEPTION_V1,
    "inception_v2": _inception(_build_fn("inception_v2"), 224, "InceptionV2/Logits/Conv2d_1c_1x1"),
    "inception_v3": _inception(
        _build_fn("inception_v3"),
        299,
        "InceptionV3/Logits/Conv2d_1c_1x1",
        "InceptionV3/AuxLogits/Conv2d_2b_1x1",
        label_smoothing=0.1,
    ),
    "inception_v4": _inception(
        _build_fn("inception_v4"),
        299,
        "InceptionV4/Logits/Logits",
        "InceptionV4/AuxLogits/Aux_logits",
    ),
    "inception_resnet_v2": _inception(
        _build_fn("inception_v4", "inception_resnet_v2"),
        299,
        "InceptionResnetV2/Logits/Logits",
        "InceptionResnetV2/AuxLogits/Logits",
    ),
    **_resnets("resnet_v1"),
    **_resnets("resnet_v2"),
}

PREPROCESSING = tuple(sorted({spec.preprocessing for spec in NETS.values()}))


def get_spec(name: str) -> NetSpec:
    """Returns the net's entry; ValueError lists the allowed names."""
    if name not in NETS:
        raise ValueError(f"unknown net {name!r}: allowed are {', '.join(sorted(NETS))}")
    return NETS[name]
