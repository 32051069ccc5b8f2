"""A net with its loss, which one node computes from a batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf


class Losses(NamedTuple):
    """Float32 scalars: mean cross entropy over the batch, of all heads, and the weight decay."""

    entropy: tf.Tensor
    regularization: tf.Tensor


class Parameters(NamedTuple):
    """Values of a classifier's `variables` and of its `state`, in their order."""

    weights: list[tf.Tensor]
    state: list[tf.Tensor]


class Classifier:
    """A Keras functional model as a pure function of its parameters.

    The model maps images [B, H, W, C], or images and a dropout seed int32 [2] if it has a second
    input, to logits [B, classes]. A model with auxiliary heads has a list of outputs: the logits,
    and those of each head.
    """

    def __init__(
        self,
        model: keras.Model,
        label_smoothing: float = 0.0,
        trainable_scopes: Sequence[str] = (),
        auxiliary_weights: Sequence[float] = (),
        name_of: Callable[[keras.Variable], str] = operator.attrgetter("path"),
    ) -> None:
        """Wraps a model.

        Args:
          model: see class.
          label_smoothing: share of each label's weight that is spread over all classes.
          trainable_scopes: train only variables whose names begin with one of these; empty = all.
          auxiliary_weights: weight in the loss of each auxiliary head's cross entropy.
          name_of: gives a variable its name in checkpoints, scopes and messages.

        Raises:
          ValueError: a scope names no variable, or the model has another number of outputs.
        """
        if len(model.outputs) != 1 + len(auxiliary_weights):
            raise ValueError(
                f"the model has {len(model.outputs)} outputs; allowed with "
                f"{len(auxiliary_weights)} auxiliary weights are {1 + len(auxiliary_weights)}."
            )
        self.model = model
        self._label_smoothing = label_smoothing
        self._head_weights = [1.0, *auxiliary_weights]
        self._trainable = model.trainable_variables
        names = [name_of(v) for v in self._trainable]
        self._trained = _indices_in_scopes(names, trainable_scopes)
        self.variables: list[tf.Variable] = [self._trainable[i].value for i in self._trained]
        self.names: list[str] = [names[i] for i in self._trained]
        self.frozen: dict[str, tf.Variable] = {
            names[i]: v.value for i, v in enumerate(self._trainable) if i not in self._trained
        }
        self.state: dict[str, tf.Variable] = {
            name_of(v): v.value for v in model.non_trainable_variables
        }

    def gradients(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        dropout_seed: tf.Tensor,
        at: Parameters | None = None,
    ) -> tuple[list[tf.Tensor], Losses, list[tf.Tensor]]:
        """Returns one node's gradients of the total loss.

        Args:
          images: float32 [B, H, W, C].
          labels: int32 [B].
          dropout_seed: int32 [2].
          at: the values to compute with; None = those of the variables.

        Returns:
          Gradients in the order of `variables`, the losses, and the updated values of `state`.
        """
        values = [tf.convert_to_tensor(v.value) for v in self._trainable]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for i, value in zip(self._trained, at.weights if at else (), strict=bool(at)):
                values[i] = value
            trained = [values[i] for i in self._trained]
            tape.watch(trained)
            state = at.state if at else list(self.state.values())
            losses, state = self._losses(values, state, images, labels, dropout_seed)
            total = losses.entropy + losses.regularization
        gradients = tape.gradient(total, trained, unconnected_gradients="zero")
        return gradients, losses, state

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """Returns logits float32 [B, classes] of the current parameters, without dropout."""
        seed = tf.zeros([2], tf.int32)
        return _heads(self.model(self._inputs(images, seed), training=False))[0]

    def _losses(self, values, state, images, labels, dropout_seed):
        outputs, state, penalties = self.model.stateless_call(
            values,
            state,
            self._inputs(images, dropout_seed),
            training=True,
            return_losses=True,
        )
        entropy = tf.add_n(
            [
                weight * tf.reduce_mean(self._cross_entropy(logits, labels))
                for weight, logits in zip(self._head_weights, _heads(outputs), strict=True)
            ]
        )
        penalty = tf.add_n(penalties) if penalties else tf.zeros([])
        return Losses(entropy, penalty), state

    def _cross_entropy(self, logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        if self._label_smoothing == 0.0:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        classes = logits.shape[-1]
        spread = self._label_smoothing / classes
        targets = tf.one_hot(labels, classes, 1.0 - self._label_smoothing + spread, spread)
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)

    def _inputs(self, images: tf.Tensor, dropout_seed: tf.Tensor):
        return [images, dropout_seed] if len(self.model.inputs) == 2 else images


class IdleClassifier:
    """Computes nothing, in steps that the others make without this process: gradients are 0."""

    def __init__(self, classifier: Classifier) -> None:
        """Shares the variables of a classifier."""
        self.variables = classifier.variables
        self.state = classifier.state

    def gradients(
        self, images: tf.Tensor, labels: tf.Tensor, dropout_seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], Losses, list[tf.Tensor]]:
        """Returns zeros and the unchanged state; see `Classifier.gradients`."""
        del images, labels, dropout_seed
        zero = tf.zeros([])
        gradients = [tf.zeros(v.shape) for v in self.variables]
        return gradients, Losses(zero, zero), [v.read_value() for v in self.state.values()]


def _heads(outputs: tf.Tensor | list[tf.Tensor]) -> list[tf.Tensor]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _indices_in_scopes(names: Sequence[str], scopes: Sequence[str]) -> list[int]:
    if not scopes:
        return list(range(len(names)))
    for scope in scopes:
        if not any(name.startswith(scope) for name in names):
            allowed = ", ".join(dict.fromkeys(name.rpartition("/")[0] for name in names))
            raise ValueError(f"no trainable variable begins with {scope!r}; layers are {allowed}.")
    return [i for i, name in enumerate(names) if name.startswith(tuple(scopes))]
