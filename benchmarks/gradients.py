"""Gradients for measuring exchanges: names and shapes of a net's variables."""

from collections.abc import Mapping

from slim.nets import nets_factory

Shapes = Mapping[str, tuple[int, ...]]

_CIFAR10 = {"lenet_slim": 10, "cifar10_alexnet": 10}

# Kernels of AlexNet in one column (arXiv 1404.5997: 61.1 million parameters) and of VGG-A
# (arXiv 1409.1556, table 1: 132.9 million).
_ALEXNET = {
    "conv1": (11, 11, 3, 64),
    "conv2": (5, 5, 64, 192),
    "conv3": (3, 3, 192, 384),
    "conv4": (3, 3, 384, 256),
    "conv5": (3, 3, 256, 256),
    "fc6": (6 * 6 * 256, 4096),
    "fc7": (4096, 4096),
    "fc8": (4096, 1000),
}
_VGG_A = {
    "conv1": (3, 3, 3, 64),
    "conv2": (3, 3, 64, 128),
    "conv3_1": (3, 3, 128, 256),
    "conv3_2": (3, 3, 256, 256),
    "conv4_1": (3, 3, 256, 512),
    "conv4_2": (3, 3, 512, 512),
    "conv5_1": (3, 3, 512, 512),
    "conv5_2": (3, 3, 512, 512),
    "fc6": (7 * 7 * 512, 4096),
    "fc7": (4096, 4096),
    "fc8": (4096, 1000),
}

NETS = ("lenet_slim", "cifar10_alexnet", "alexnet", "vgg_a")


def shapes_of(net: str) -> Shapes:
    """Returns the shapes of the variables of one of NETS by name, in the order of the layers."""
    if net in _CIFAR10:
        model = nets_factory.build_net(net, num_classes=_CIFAR10[net])
        return {nets_factory.variable_name(v): tuple(v.shape) for v in model.trainable_variables}
    kernels = {"alexnet": _ALEXNET, "vgg_a": _VGG_A}[net]
    shapes = {}
    for layer, kernel in kernels.items():
        shapes[f"{layer}/kernel"] = kernel
        shapes[f"{layer}/bias"] = kernel[-1:]
    return shapes
