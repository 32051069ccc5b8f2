"""Checkpoints that TF-Slim wrote with TensorFlow 1.

Such a checkpoint names a kernel `InceptionV3/Conv2d_1a_3x3/weights` and a bias `.../biases`. The
suite calls them `kernel` and `bias`, as Keras does. All other names and all shapes are equal, since
the suite's nets have TF-Slim's scopes.
"""

from __future__ import annotations

import re

import tensorflow as tf

from slim.weights.found import Weights

_LAST_PARTS = {"weights": "kernel", "biases": "bias", "depthwise_weights": "depthwise_kernel"}
_LAST_PARTS |= {"pointwise_weights": "pointwise_kernel"}
_LAST_PARTS |= {name: name for name in ("beta", "gamma", "moving_mean", "moving_variance")}
# Scopes of small nets, whose variables have no scope in the suite, and a layer with another name.
_SCOPES = {"lenet_slim": "LeNet", "cifarnet": "CifarNet"}
_LAYERS = {("lenet_slim", "fc4"): "logits"}


def read(path: str, net: str) -> Weights:
    """Reads a checkpoint of TensorFlow 1, in either of its two formats.

    Args:
      path: the checkpoint, without the endings of its files.
      net: name of the net, e.g. "inception_v3".

    Raises:
      ValueError: the file is no readable checkpoint, or it holds no weight of a net.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        names = sorted(reader.get_variable_to_shape_map())
        arrays = {name: reader.get_tensor(name) for name in names if _suite_name(name, net)}
    except (tf.errors.OpError, ValueError, IndexError) as error:  # IndexError: it is too short
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is not a readable checkpoint: {reason}") from error
    if not arrays:
        raise ValueError(f"{path} holds no weights with TF-Slim's names")
    left_out = tuple(name for name in names if name not in arrays)
    named = {_suite_name(name, net): array for name, array in arrays.items()}
    return Weights("TF-Slim's checkpoint", named, left_out)


def suite_scope(scope: str, net: str) -> str:
    """Returns the suite's name of a scope that a user may know from TF-Slim."""
    inner = scope.removeprefix(_SCOPES.get(net, "")).removeprefix("/")
    return _LAYERS.get((net, inner), inner)


def _suite_name(name: str, net: str) -> str | None:
    """Returns the suite's name of a weight; None for slots, averages and the global step."""
    scope, _, last = name.rpartition("/")
    if not scope or last not in _LAST_PARTS or re.search(r"(^|/)(Momentum|Adam|RMSProp)", scope):
        return None
    return f"{suite_scope(scope, net)}/{_LAST_PARTS[last]}"
