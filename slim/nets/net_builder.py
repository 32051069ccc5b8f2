"""Adds layers to a net, with the settings that all layers of the net share."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import keras

from slim.nets import layers


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
        return layers.Dropout(self.dropout_keep_prob, salt, name=name)(net, self.dropout_seed)

    def decay(self, decay: bool = True) -> layers.WeightDecay | None:
        """Returns the penalty on a kernel; None if there is none."""
        return layers.WeightDecay(self.weight_decay) if decay and self.weight_decay else None

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
