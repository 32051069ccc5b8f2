"""Preprocessing by name."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from slim.preprocessing import cifarnet, lenet, unit

# (image uint8 [H, W, C], size in pixels, seed int64 [2]) -> float32 [size, size, C]. All draws
# depend on the seed only.
Preprocess = Callable[[tf.Tensor, int, tf.Tensor], tf.Tensor]

_PREPROCESSING: dict[str, tuple[Preprocess, Preprocess]] = {  # for training, for evaluation
    "cifarnet": (cifarnet.preprocess_for_training, cifarnet.preprocess_for_evaluation),
    "lenet": (lenet.preprocess, lenet.preprocess),
    "unit": (unit.preprocess, unit.preprocess),
}


def get_preprocessing(name: str, is_training: bool) -> Preprocess:
    """Returns a preprocessing function; ValueError lists the allowed names."""
    if name not in _PREPROCESSING:
        raise ValueError(f"unknown preprocessing {name!r}; allowed: {', '.join(_PREPROCESSING)}")
    for_training, for_evaluation = _PREPROCESSING[name]
    return for_training if is_training else for_evaluation
