"""VGG (Simonyan and Zisserman, arXiv 1409.1556) with TF-Slim's names; no batch normalization."""

from __future__ import annotations

import keras

from slim.nets.net_builder import XAVIER, NetBuilder, Scope, Style

CONVOLUTIONS = {  # in each of the five groups
    "vgg_a": (1, 1, 2, 2, 2),
    "vgg_16": (2, 2, 3, 3, 3),
    "vgg_19": (2, 2, 4, 4, 4),
}
_FILTERS = (64, 128, 256, 512, 512)


def vgg(
    images: keras.KerasTensor, num_classes: int, add: NetBuilder, *, name: str
) -> keras.KerasTensor:
    """Returns the logits of one of CONVOLUTIONS.

    fc6 sees 7 x 7 positions, those of a 224 x 224 image. A larger image has several such windows;
    their features are averaged before fc8, as with TF-Slim's `global_pool`.
    """
    scope, net = Scope(add, name, Style(XAVIER)), images
    for group, (count, filters) in enumerate(zip(CONVOLUTIONS[name], _FILTERS, strict=True), 1):
        for i in range(1, count + 1):
            net = scope.conv(net, f"conv{group}.conv{group}_{i}", filters, 3)
        net = scope.max_pool(net, f"pool{group}", 2, 2, "valid")
    return scope.logits(scope.hidden_layers(net, 7), "fc8", num_classes)
