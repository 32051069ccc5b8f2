"""Nets in PyTorch with the layers of those in slim/nets, and steps that train them."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import nn

_VGG_16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters and convolutions of a group
_RESNET_50 = ((64, 3, 2), (128, 4, 2), (256, 6, 2), (512, 3, 1))  # filters, units, last stride


# With PyTorch's own updates in one pass over memory.
OPTIMIZERS: Mapping[str, Callable[[Iterable], torch.optim.Optimizer]] = {
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9, fused=True),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, fused=True),
}


class Net(NamedTuple):
    """A net, the shape of its images, and the number of its classes."""

    build: Callable[[], nn.Module]
    image: tuple[int, int, int]
    classes: int


def steps(
    model: nn.Module, net: Net, batch_size: int, optimizer_name: str = "momentum"
) -> Callable[[int], None]:
    """Returns a function that makes steps of a model of `net`, on random images."""
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    images = torch.randn(batch_size, *net.image)
    labels = torch.randint(0, net.classes, (batch_size,))
    entropy = nn.CrossEntropyLoss()

    def run(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            entropy(model(images), labels).backward()
            optimizer.step()

    return run


def lenet_slim() -> nn.Module:
    """Returns the net of slim/nets/lenet.py: 3,274,634 parameters."""
    return nn.Sequential(
        *_conv(1, 32, 5),
        nn.MaxPool2d(2),
        *_conv(32, 64, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *_dense(7 * 7 * 64, 1024),
        nn.Linear(1024, 10),
    )


def alexnet_v2() -> nn.Module:
    """Returns the net of slim/nets/alexnet.py: 50.3 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        *_conv(64, 192, 5),
        nn.MaxPool2d(3, 2),
        *_conv(192, 384, 3),
        *_conv(384, 384, 3),
        *_conv(384, 256, 3),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        *_dense(5 * 5 * 256, 4096),
        *_dense(4096, 4096),
        nn.Linear(4096, 1000),
    )


def vgg_16() -> nn.Module:
    """Returns the net of slim/nets/vgg.py: 138.4 million parameters."""
    layers, channels = [], 3
    for filters, count in _VGG_16:
        for _ in range(count):
            layers += _conv(channels, filters, 3)
            channels = filters
        layers.append(nn.MaxPool2d(2))
    top = (nn.Flatten(), *_dense(7 * 7 * 512, 4096), *_dense(4096, 4096), nn.Linear(4096, 1000))
    return nn.Sequential(*layers, *top)


def resnet_v1_50() -> nn.Module:
    """Returns the net of slim/nets/resnet.py: 25.6 million parameters."""
    layers = [*_normalized(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for filters, units, stride in _RESNET_50:
        for unit in range(1, units + 1):
            layers.append(_Unit(channels, filters, stride if unit == units else 1))
            channels = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class _Unit(nn.Module):
    """A bottleneck of the residual net."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        wide = 4 * filters
        project = nn.Sequential(*_normalized(channels, wide, 1, stride))
        self.shortcut = nn.MaxPool2d(1, stride) if channels == wide else project
        self.inner = nn.Sequential(
            *_normalized(channels, filters, 1),
            nn.ReLU(),
            *_normalized(filters, filters, 3, stride),
            nn.ReLU(),
            *_normalized(filters, wide, 1),
        )

    def forward(self, net: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(net) + self.inner(net))


def _conv(channels: int, filters: int, size: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, size, padding="same"), nn.ReLU()


def _normalized(channels: int, filters: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    padding = (size - 1) // 2
    conv = nn.Conv2d(channels, filters, size, stride=stride, padding=padding, bias=False)
    return conv, nn.BatchNorm2d(filters)


def _dense(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.5)


NETS: Mapping[str, Net] = {
    "lenet_slim": Net(lenet_slim, (1, 28, 28), 10),
    "alexnet_v2": Net(alexnet_v2, (3, 224, 224), 1000),
    "vgg_16": Net(vgg_16, (3, 224, 224), 1000),
    "resnet_v1_50": Net(resnet_v1_50, (3, 224, 224), 1000),
}
