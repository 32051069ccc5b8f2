"""Building blocks of nets: layers that Keras lacks, and builders that append layers.

A `NetBuilder` has the settings that all layers of a net share. A `Scope` appends its layers under
names with scopes, as TF-Slim's variable scopes and arg scopes do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

Initializer = Callable[..., keras.initializers.Initializer]  # takes seed=
Size = int | tuple[int, int]  # of a kernel: height and width

XAVIER: Initializer = keras.initializers.GlorotUniform
HE: Initializer = keras.initializers.HeNormal


class CoveringConv2D(keras.layers.Conv2D):
    """A convolution whose kernel covers the whole input: a fully connected layer.

    On CPUs TensorFlow computes the matrix product much faster than the convolution: the gradients
    of AlexNet's fc6 (6 x 6 x 256 to 4096, batch 32) take 0.2 s in place of 6.8 s on 2 cores.
    """

    def convolution_op(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """See base class; from [B, H, W, C] and [H, W, C, filters] to [B, 1, 1, filters]."""
        covered = math.prod(kernel.shape[:-1])
        product = tf.reshape(inputs, [-1, covered]) @ tf.reshape(kernel, [covered, self.filters])
        return tf.reshape(product, [-1, 1, 1, self.filters])


class Dropout(keras.layers.Layer):
    """Sets a random share of the values to 0, and divides the others by `keep_prob`.

    The draw is a function of `salt` and of the seed that the net is called with. Unlike
    keras.layers.Dropout the layer holds no state, so a step can be repeated.
    """

    def __init__(self, keep_prob: float, salt: int, **kwargs: Any) -> None:
        """`keep_prob` in (0, 1]; `salt` (int32) differs between the layers of a net."""
        super().__init__(**kwargs)
        self.keep_prob = keep_prob
        self.salt = salt

    def call(self, values: tf.Tensor, seed: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Drops some of `values` (float) in training; `seed` is int32 [2]."""
        if not training or self.keep_prob == 1.0:
            return values
        seed = tf.bitwise.bitwise_xor(seed, [self.salt, 0])
        draws = tf.random.stateless_uniform(tf.shape(values), seed, alg="philox")
        return tf.where(draws < self.keep_prob, values / self.keep_prob, 0.0)


class LocalResponseNormalization(keras.layers.Layer):
    """x / (bias + alpha * sum of x^2 over the 2 * radius + 1 nearest channels) ^ beta.

    The defaults are those of the CIFAR-10 nets.
    """

    def __init__(
        self,
        radius: int = 4,
        *,
        bias: float = 1.0,
        alpha: float = 0.001 / 9,
        beta: float = 0.75,
        **kwargs: Any,
    ) -> None:
        """Takes the constants of the formula."""
        super().__init__(**kwargs)
        self.radius, self.bias, self.alpha, self.beta = radius, bias, alpha, beta

    def call(self, values: tf.Tensor) -> tf.Tensor:
        """Normalises float32 [B, H, W, C]."""
        return tf.nn.local_response_normalization(
            values, self.radius, self.bias, self.alpha, self.beta
        )


class WeightDecay(keras.regularizers.Regularizer):
    """rate * sum(w^2) / 2, whose gradient is rate * w; keras.regularizers.L2 is twice that."""

    def __init__(self, rate: float) -> None:
        """Takes the weight decay, at least 0."""
        self.rate = rate

    def __call__(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the loss of a kernel, a scalar."""
        return self.rate * tf.nn.l2_loss(weights)


def layer_seed(seed: int, name: str) -> int:
    """Returns the layer's own seed in [0, 2^31), which does not depend on the other layers."""
    return zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


@dataclasses.dataclass(frozen=True)
class NetBuilder:
    """Appends layers to Keras tensors.

    Attributes:
      weight_decay: adds weight_decay * sum(w^2) / 2 of every decayed kernel to the model's losses.
      dropout_keep_prob: share of the values that dropout keeps, in (0, 1].
      seed: decides, with the name of a layer, the layer's initial weights.
      dropout_seed: int32 [2] input of the model; None leaves dropout out.
    """

    weight_decay: float
    dropout_keep_prob: float
    seed: int
    dropout_seed: keras.KerasTensor | None = None

    def conv(
        self, net: keras.KerasTensor, filters: int, size: int, name: str, **kwargs: Any
    ) -> keras.KerasTensor:
        """Appends a `size` x `size` convolution with SAME padding; see also `_options`."""
        options = self._options(name, **kwargs)
        return keras.layers.Conv2D(filters, size, padding="same", **options)(net)

    def dense(
        self, net: keras.KerasTensor, units: int, name: str, **kwargs: Any
    ) -> keras.KerasTensor:
        """Appends a fully connected layer; see also `_options`."""
        return keras.layers.Dense(units, **self._options(name, **kwargs))(net)

    def dropout(self, net: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Appends dropout, which draws from the model's dropout_seed; nothing without a seed."""
        if self.dropout_seed is None:
            return net
        salt = layer_seed(0, name)
        return Dropout(self.dropout_keep_prob, salt, name=name)(net, self.dropout_seed)

    def decay(self, decay: bool = True) -> WeightDecay | None:
        """Returns the penalty on a kernel; None if there is none."""
        return WeightDecay(self.weight_decay) if decay and self.weight_decay else None

    def _options(
        self,
        name: str,
        *,
        stddev: float,
        bias: float = 0.0,
        activation: str | None = "relu",
        decay: bool = True,
        initializer: type[keras.initializers.Initializer] = keras.initializers.TruncatedNormal,
    ) -> dict[str, Any]:
        """Returns the layer's arguments; `stddev` is the kernel's, `bias` a constant."""
        return {
            "name": name,
            "activation": activation,
            "kernel_initializer": initializer(stddev=stddev, seed=layer_seed(self.seed, name)),
            "bias_initializer": keras.initializers.Constant(bias),
            "kernel_regularizer": self.decay(decay),
        }


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
