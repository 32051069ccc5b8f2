"""Adds layers under names with scopes, as TF-Slim's variable scopes and arg scopes do."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from slim.nets.layers import CoveringConv2D
from slim.nets.net_builder import NetBuilder, layer_seed

Initializer = Callable[..., keras.initializers.Initializer]  # takes seed=
Size = int | tuple[int, int]  # of a kernel: height and width

XAVIER: Initializer = keras.initializers.GlorotUniform
HE: Initializer = keras.initializers.HeNormal


def truncated_normal(stddev: float) -> Initializer:
    """Returns the normal distribution, cut at two standard deviations."""
    return functools.partial(keras.initializers.TruncatedNormal, stddev=stddev)


class BatchNorm(NamedTuple):
    """Settings of batch normalization; `scale` says whether it has a gamma beside the beta."""

    decay: float
    epsilon: float
    scale: bool


BATCH_NORM = BatchNorm(decay=0.9997, epsilon=0.001, scale=False)  # of AlexNet and the Inceptions


@dataclasses.dataclass(frozen=True)
class Style:
    """Settings that the convolutions of a net share.

    Attributes:
      initializer: distribution of the kernels.
      batch_norm: normalization before the activation, in place of a bias; None = a bias.
      padding: "same" or "valid".
      bias: initial value of the biases.
    """

    initializer: Initializer = HE
    batch_norm: BatchNorm | None = None
    padding: str = "same"
    bias: float = 0.0


@dataclasses.dataclass(frozen=True)
class Scope:
    """A builder, a name and a style; `scope / "conv1"` is the scope `conv1` in `scope`.

    Keras forbids "/" in the names of layers, so "." stands for it there.
    """

    add: NetBuilder
    name: str
    style: Style

    def __truediv__(self, name: str) -> Scope:
        return dataclasses.replace(self, name=f"{self.name}.{name}")

    def styled(self, **changes: Any) -> Scope:
        """Returns the same scope with another style."""
        return dataclasses.replace(self, style=dataclasses.replace(self.style, **changes))

    def conv(
        self,
        net: keras.KerasTensor,
        name: str,
        filters: int,
        size: Size,
        *,
        strides: int = 1,
        padding: str | None = None,
        activation: str | None = "relu",
        normalize: bool = True,
    ) -> keras.KerasTensor:
        """Appends a convolution with the scope's style; `normalize=False` gives it a bias."""
        full_name, norm = f"{self.name}.{name}", self.style.batch_norm if normalize else None
        padding = padding or self.style.padding
        net = _kind_of_conv(net, size, padding)(
            filters,
            size,
            strides,
            padding,
            use_bias=norm is None,
            activation=None if norm else activation,
            **self._weights(full_name),
        )(net)
        return _normalize(net, norm, f"{full_name}.BatchNorm", activation) if norm else net

    def dense(self, net: keras.KerasTensor, name: str, units: int) -> keras.KerasTensor:
        """Appends a fully connected layer without activation to [B, n]."""
        return keras.layers.Dense(units, **self._weights(f"{self.name}.{name}"))(net)

    def batch_norm(self, net: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Appends batch normalization of its own, and ReLU."""
        return _normalize(net, self.style.batch_norm, f"{self.name}.{name}", "relu")

    def max_pool(
        self,
        net: keras.KerasTensor,
        name: str,
        size: int,
        strides: int = 1,
        padding: str | None = None,
    ) -> keras.KerasTensor:
        """Appends the maximum over `size` x `size` positions."""
        options = {"padding": padding or self.style.padding, "name": f"{self.name}.{name}"}
        return keras.layers.MaxPooling2D(size, strides, **options)(net)

    def avg_pool(
        self,
        net: keras.KerasTensor,
        name: str,
        size: int,
        strides: int = 1,
        padding: str | None = None,
    ) -> keras.KerasTensor:
        """Appends the mean over `size` x `size` positions; positions outside do not count."""
        options = {"padding": padding or self.style.padding, "name": f"{self.name}.{name}"}
        return keras.layers.AveragePooling2D(size, strides, **options)(net)

    def global_pool(self, net: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Appends the mean over all positions, [B, 1, 1, C]."""
        options = {"keepdims": True, "name": f"{self.name}.{name}"}
        return keras.layers.GlobalAveragePooling2D(**options)(net)

    def dropout(self, net: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Appends dropout, which draws from the model's dropout_seed."""
        return self.add.dropout(net, f"{self.name}.{name}")

    def hidden_layers(
        self, net: keras.KerasTensor, size: int, units: int = 4096
    ) -> keras.KerasTensor:
        """Appends fc6, which sees `size` x `size` positions, and fc7, each with dropout."""
        net = self.conv(net, "fc6", units, size, padding="valid")
        net = self.dropout(net, "dropout6")
        net = self.conv(net, "fc7", 4096, 1)
        net = self.global_pool(net, "global_pool")
        return self.dropout(net, "dropout7")

    def logits(self, net: keras.KerasTensor, name: str, num_classes: int) -> keras.KerasTensor:
        """Appends a 1x1 convolution with a bias to [B, 1, 1, C]; returns [B, num_classes]."""
        net = self.conv(net, name, num_classes, 1, activation=None, normalize=False)
        return self.squeeze(net, f"{name}.squeezed")

    def squeeze(self, net: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Appends the step from [B, 1, 1, C] to [B, C]."""
        return keras.layers.Reshape((net.shape[-1],), name=f"{self.name}.{name}")(net)

    def _weights(self, full_name: str) -> dict[str, Any]:
        return {
            "name": full_name,
            "kernel_initializer": self.style.initializer(seed=layer_seed(self.add.seed, full_name)),
            "bias_initializer": keras.initializers.Constant(self.style.bias),
            "kernel_regularizer": self.add.decay(),
        }


def _kind_of_conv(net: keras.KerasTensor, size: Size, padding: str) -> type[keras.layers.Conv2D]:
    sides = (size, size) if isinstance(size, int) else size
    covers = tuple(net.shape[1:3]) == sides and (padding == "valid" or sides == (1, 1))
    return CoveringConv2D if covers else keras.layers.Conv2D


def _normalize(
    net: keras.KerasTensor, norm: BatchNorm, name: str, activation: str | None
) -> keras.KerasTensor:
    net = keras.layers.BatchNormalization(
        momentum=norm.decay, epsilon=norm.epsilon, scale=norm.scale, name=name
    )(net)
    return (
        keras.layers.Activation(activation, name=f"{name}.{activation}")(net) if activation else net
    )
