"""Published properties of the nets, and a step of each, for the tests."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from slim.nets import catalog, nets_factory
from slim.nets.nets_factory import variable_name

CLASSES = 10
WEIGHT_DECAY = 0.01
BATCH = 2


class Published(NamedTuple):
    """Properties of a net as published.

    Attributes:
      parameters: elements of all variables with 1000 classes, moving statistics included and
        auxiliary heads left out; with 10 classes for the nets of small images.
      names: digest of the names and shapes of all variables with 10 classes and the smallest
        images, see `digest`; "" for the nets of SMALL.
      dropouts: number of dropout layers.
      initial: standard deviations of the initial kernels by the end of the layer's name; "" = all
        others. "he" and "xavier" depend on the kernel's shape.
    """

    parameters: int
    names: str
    dropouts: int
    initial: Mapping[str, float | str]


_ALEXNET = {"": 0.01, "/fc6": 0.005, "/fc7": 0.005}
_INCEPTION_V4 = {"": "he", "Logits/Logits": "xavier", "Aux_logits": "xavier"}
_RESNET = {"": "he"}
_INCEPTION_V1 = {"": 0.01, "Logits/Conv2d_0c_1x1": "he"}
_XAVIER = {"": "xavier"}
_TOP = {"/fc6": 0.005, "/fc7": 0.005, "/fc8": 0.005}  # of the nets with hidden layers
_INCEPTION_V2 = {
    "": "he",
    "Conv2d_1a_7x7": 1.0,
    "Conv2d_2b_1x1": 0.1,
    "Branch_3/Conv2d_0b_1x1": 0.1,
    **{f"Branch_{i}/Conv2d_0a_1x1": 0.09 for i in (1, 2)},
    **{f"Mixed_{i}a/Branch_0/Conv2d_0a_1x1": 0.09 for i in (4, 5)},
}

# Parameters are those of: the papers' tables and torchvision (AlexNet 60,965,224, VGG, ResNet v1;
# the statistics are added), keras.applications (VGG, Inception v3, Inception-ResNet-v2, ResNet v2,
# all equal), ResNet-20's paper (.27 million with 10 classes), TF-Slim's own tests (inception_v1
# 5,607,184 and inception_v2 10,173,112 before the last layer), timm (inception_v4: 42,679,816 with
# gammas, without statistics). The names' digests are those of the variables that tf_slim 1.1.0
# makes; it lacks alexnet, v4, Inception-ResNet and ResNet-20.
PUBLISHED = {
    "lenet": Published(1_256_080, "", 0, {"": 0.05, "fc3": 0.048, "logits": 0.0767}),
    "lenet_slim": Published(3_274_634, "", 1, {"": 0.1}),
    "cifarnet": Published(
        1_756_426, "", 1, {"": 0.05, "fc3": 0.04, "fc4": 0.04, "logits": 1 / 192}
    ),
    "cifar10_alexnet": Published(
        1_068_298, "", 0, {"": 0.05, "fc3": 0.04, "fc4": 0.04, "logits": 1 / 192}
    ),
    "mlp": Published(79_510, "", 0, {"": 1.0}),
    "alexnet": Published(60_967_976, "7ed6c1204acc1a2b", 2, _ALEXNET),
    "alexnet_v2": Published(50_303_912, "0d6b9093a3d930fa", 2, _XAVIER | _TOP),
    "overfeat": Published(145_704_424, "dd55f6a71bf93b0a", 2, _XAVIER | _TOP),
    "vgg_a": Published(132_863_336, "a4025843bd4c1e4a", 2, _XAVIER),
    "vgg_16": Published(138_357_544, "53d970b6090818a2", 2, _XAVIER),
    "vgg_19": Published(143_667_240, "dd6572b802e689e2", 2, _XAVIER),
    "inception_v1": Published(6_632_184, "a47151c0217c6b29", 1, _INCEPTION_V1),
    "googlenet": Published(6_632_184, "a47151c0217c6b29", 1, _INCEPTION_V1),
    "inception_v2": Published(11_198_112, "312d57ea182a6c8f", 1, _INCEPTION_V2),
    "inception_v3": Published(
        23_851_784, "9cedeeebcbd6e50f", 1, {"": "he", "Conv2d_2a_1x1": 0.01, "Conv2d_2b_1x1": 0.001}
    ),
    "inception_v4": Published(
        42_711_400,
        "d30fbde1924d0195",
        1,
        _INCEPTION_V4,
    ),
    "inception_resnet_v2": Published(55_873_736, "9a44c7b5d1d5dee5", 1, _XAVIER),
    "resnet_20": Published(271_098, "01c4457ef8117938", 0, _RESNET),
    "resnet_v1_50": Published(25_610_152, "6f8ad703eea923d7", 0, _RESNET),
    "resnet_v1_101": Published(44_654_504, "4fc94c2de914b12a", 0, _RESNET),
    "resnet_v1_152": Published(60_344_232, "46ba5149f925860e", 0, _RESNET),
    "resnet_v1_200": Published(64_849_832, "c0462f4e61bc977c", 0, _RESNET),
    "resnet_v2_50": Published(25_613_800, "29b00c61257cd7fe", 0, _RESNET),
    "resnet_v2_101": Published(44_675_560, "e558355a7c801482", 0, _RESNET),
    "resnet_v2_152": Published(60_380_648, "cc7cf43e05263cb9", 0, _RESNET),
    "resnet_v2_200": Published(64_894_440, "33feabd6d8669166", 0, _RESNET),
}

# Layers of the nets for small images, each with a kernel and a bias.
SMALL = {
    "lenet": ("conv1", "conv2", "fc3", "logits"),
    "lenet_slim": ("conv1", "conv2", "fc3", "logits"),
    "cifarnet": ("conv1", "conv2", "fc3", "fc4", "logits"),
    "cifar10_alexnet": ("conv1", "conv2", "fc3", "fc4", "logits"),
    "mlp": ("fc1", "logits"),
}
# Layers of a small net whose kernels decay; in the other nets all do but this one.
DECAYED = {"cifarnet": ("fc3", "fc4"), "cifar10_alexnet": ("fc3", "fc4"), "mlp": ()}
WITHOUT_DECAY = ("InceptionV2/Conv2d_1a_7x7",)


def digest(variables: Mapping[str, Sequence[int]]) -> str:
    """Returns 16 digits that stand for the names and shapes of variables."""
    lines = "\n".join(f"{name} {list(shape)}" for name, shape in sorted(variables.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def build(name: str, **changes: Any) -> keras.Model:
    """Builds a net with CLASSES classes, weight decay and dropout."""
    settings = {"weight_decay": WEIGHT_DECAY, "dropout_keep_prob": 0.5, "seed": 1}
    return nets_factory.build_net(name, num_classes=CLASSES, **(settings | changes))


def inputs(model: keras.Model, seed: int = 7) -> list[tf.Tensor]:
    """Returns random images, and a dropout seed if the net takes one."""
    shape = (BATCH, *model.inputs[0].shape[1:])
    return [tf.random.stateless_normal(shape, [1, 2]), tf.constant([seed, 3])][: len(model.inputs)]


def heads(outputs: tf.Tensor | list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of a net as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


@dataclasses.dataclass(frozen=True)
class Tried:
    """A net and its results in a step of training and in evaluation.

    Attributes:
      name, model: the net.
      images: its inputs, see `inputs`.
      logits: of each head, in training.
      losses: penalties of the kernels.
      gradients: of a loss in which all heads count, and no penalties, by variable.
      state: moving statistics after the step, by variable.
    """

    name: str
    model: keras.Model
    images: list[tf.Tensor]
    logits: list[tf.Tensor]
    losses: list[tf.Tensor]
    gradients: dict[str, tf.Tensor]
    state: dict[str, tf.Tensor]

    @functools.cached_property
    def variables(self) -> dict[str, tf.Variable]:
        """All variables by name."""
        return nets_factory.named_variables(self.model)

    @property
    def kernels(self) -> dict[str, tf.Variable]:
        """The kernels by name."""
        return {k: v for k, v in self.variables.items() if k.endswith("kernel")}


def try_net(name: str, image_size: int) -> Tried:
    """Builds a net and makes a step; eagerly, because tracing the deep nets takes longer."""
    model = build(name, image_size=image_size)
    images = inputs(model)
    weights = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, state, losses = model.stateless_call(
            weights,
            [v.value for v in model.non_trainable_variables],
            images if len(images) > 1 else images[0],
            training=True,
            return_losses=True,
        )
        scores = [tf.reduce_sum(tf.nn.log_softmax(logits)[:, 0]) for logits in heads(outputs)]
    gradients = tape.gradient(scores, weights)
    names = [variable_name(v) for v in model.trainable_variables]
    states = [variable_name(v) for v in model.non_trainable_variables]
    return Tried(
        name,
        model,
        images,
        heads(outputs),
        losses,
        dict(zip(names, gradients, strict=True)),
        dict(zip(states, state, strict=True)),
    )


def evaluate(model: keras.Model, images: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the logits of each head in evaluation."""
    return heads(model(images if len(images) > 1 else images[0], training=False))


def parameters(tried: Tried) -> int:
    """Returns the number that `Published.parameters` states."""
    spec = catalog.get_spec(tried.name)
    shapes = {k: v.shape for k, v in tried.variables.items() if "/AuxLogits/" not in k}
    last = shapes[f"{spec.logits_layers[0]}/kernel"]
    small = spec.image_size <= 32
    more = 0 if small else (1000 - CLASSES) * (math.prod(last[:-1]) + 1)
    return sum(math.prod(shape) for shape in shapes.values()) + more


def expected_stddev(name: str, kernel: str, shape: Sequence[int]) -> float:
    """Returns the published standard deviation of an initial kernel."""
    initial, layer = PUBLISHED[name].initial, "/" + kernel.rpartition("/")[0]
    ends = [end for end in initial if layer.endswith(end)]
    rule = initial[max(ends, key=len)]
    receptive = math.prod(shape[:-2])
    if rule == "he":
        return math.sqrt(2 / (receptive * shape[-2]))
    if rule == "xavier":
        return math.sqrt(2 / (receptive * (shape[-2] + shape[-1])))
    # A normal distribution that is cut at two standard deviations has 0.8796 of the whole one's.
    return rule * (1.0 if name == "mlp" else 0.8796)
