"""The data sets of the suite, each a module; its facts are known without TensorFlow."""

from __future__ import annotations

from types import ModuleType

from slim.datasets import cifar10, fashion_mnist, flowers, imagenet, images, mnist

# A module has INFO, `download` and `load`; docs/extending.md says what they do.
MODULES: dict[str, ModuleType] = {
    module.INFO.name: module
    for module in (mnist, fashion_mnist, cifar10, imagenet, flowers, images)
}
