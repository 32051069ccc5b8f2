"""The gradient that a worker computes from pulled parameters, and the part of it for each ps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.row import RowLayout, Shard, make_row_layout
from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import largest_code
from terngrad.codecs.float_codec import FloatCodec
from terngrad.layout import Layout
from terngrad.ops.packing import Packing
from terngrad.planes import fits, plane_count
from terngrad.training.classifier import Classifier, Losses
from terngrad.training.nodes import compute_nodes, values_of_row
from terngrad.training.reduction import Aggregate, Reduction


class Pushable(NamedTuple):
    """A worker's gradient as ps take it.

    Attributes:
      scales: float32 [p], of the coded variables.
      units: float32 [p], the value of a code of 1.
      words: uint32 [coded / 32, planes], the sums of its nodes' codes.
      floats: float32 or float16, means of the float variables, padded like the row.
      statistics: float32, new values of the moving statistics.
    """

    scales: tf.Tensor | np.ndarray
    units: tf.Tensor | np.ndarray
    words: tf.Tensor | np.ndarray
    floats: tf.Tensor | np.ndarray
    statistics: tf.Tensor | np.ndarray


class Computed(NamedTuple):
    """A worker's gradient and what shows it.

    Attributes:
      losses: mean over the nodes of this worker.
      pushable: what is pushed.
      gradients: gradients of the first node.
      encoded: codes of the first node, by codec.
    """

    losses: Losses
    pushable: Pushable
    gradients: list[tf.Tensor]
    encoded: list[list[tf.Tensor]]


def check_codecs(codecs: Sequence[Codec], name: str) -> None:
    """Checks that a ps can apply what codecs write.

    Raises:
      ValueError: names the codec, which writes neither integers nor floats, or whose means are
        not the decoded sums of its codes.
    """
    for codec in codecs:
        if not codec.sums_codes and not isinstance(codec, FloatCodec):
            raise ValueError(
                f"codec is {name}; asynchronous training allows only subclasses of IntegerCodec "
                "that inherit deliver and decode."
            )


class GradientStep:
    """Computes the gradient of a batch with pulled parameters, compiled.

    The nodes of a worker share their scales, and the worker pushes the sums of their codes. Workers
    share nothing with each other.
    """

    def __init__(
        self,
        classifier: Classifier,
        layout: Layout,
        reduction: Reduction,
    ) -> None:
        """Combines the parts.

        Args:
          classifier: net and loss, whose variables get the pulled values.
          layout: layout of the gradients.
          reduction: of the layout's gradients, over the nodes of this worker. Its memory starts
            with zeros also in a restarted worker: that of before belongs to no step of the run.
        """
        self._classifier, self._layout, self._reduction = classifier, layout, reduction
        self._row_layout = make_row_layout(layout)
        self._compiled = tf.function(self._compute, autograph=False)

    def __call__(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        version: int,
        parameters: Sequence[np.ndarray],
        statistics: np.ndarray,
    ) -> Computed:
        """Computes the gradient of a batch.

        Args:
          images: float32 [B, H, W, C], split over the nodes.
          labels: int32 [B].
          version: version of the parameters; with the seed it selects the random draws.
          parameters: parameters of each ps, flat float32 or float16.
          statistics: moving statistics, float32.
        """
        step = tf.constant(np.int64(version))  # TensorFlow keeps each int of Python for ever
        return self._compiled(images, labels, step, list(parameters), statistics)

    def _compute(self, images, labels, version, parameters, statistics) -> Computed:
        self._take(parameters, statistics)
        reduction, exchange = self._reduction, self._reduction.exchange
        keys = reduction.keys(version)
        computed = compute_nodes(self._classifier, images, labels, keys, reduction.devices)
        gradients, losses, states = zip(*computed, strict=True)
        (mean_losses,) = exchange.mean([[tf.stack(loss)] for loss in losses], "losses")
        (statistics,) = exchange.mean([[state] for state in states], "moving statistics")
        found = reduction.reduce(gradients, keys, as_sums=True)
        reduction.remember(found)
        pushable = pushable_of(found, reduction, self._layout, statistics)
        return Computed(Losses(*tf.unstack(mean_losses)), pushable, gradients[0], found.encoded)

    def _take(self, parameters: Sequence[tf.Tensor], statistics: tf.Tensor) -> None:
        """Assigns the pulled values to the net."""
        row = tf.concat([tf.cast(part, tf.float32) for part in parameters], 0)
        assign_row(row, self._classifier.variables, self._row_layout)
        state = self._classifier.state.values()
        for variable, value in zip(state, values_of_row(statistics, state), strict=True):
            variable.assign(value)


def pushable_of(
    found: Aggregate, reduction: Reduction, layout: Layout, statistics: tf.Tensor
) -> Pushable:
    """Returns what a worker pushes, within a graph.

    Args:
      found: the worker's gradient, which its reduction returned with sums.
      reduction: over the nodes of this worker.
      layout: layout of the gradients.
      statistics: new values of the moving statistics, float32.
    """
    planes = plane_count(reduction.exchange.num_nodes * largest_code(reduction.codecs))
    by_codec = (found.means[i] for codec in reduction.codecs for i in codec.variables)
    floats = [tf.reshape(mean, [-1]) for mean in by_codec if mean is not None]
    row_layout = make_row_layout(layout)
    padding = row_layout.size - row_layout.coded - sum(part.shape[0] for part in floats)
    return Pushable(
        found.scales,
        tf.concat([tf.zeros([0]), *(sums.units for sums in found.sums)], 0),
        tf.concat([tf.zeros([0, planes], tf.uint32), *(s.words for s in found.sums)], 0),
        tf.cast(tf.concat([*floats, tf.zeros([padding])], 0), layout.policy.float_type),
        statistics,
    )


def assign_row(row: tf.Tensor, variables: Sequence[tf.Variable], row_layout: RowLayout) -> None:
    """Assigns a row of parameters to the variables of its layout."""
    for segment in row_layout.segments:
        variable = variables[segment.variable]
        value = row[segment.start : segment.start + segment.size]
        variable.assign(tf.reshape(value, variable.shape))


def broken_floats(pushable: Pushable, layout: Layout) -> list[str]:
    """Returns the names of the float variables whose gradient is NaN or infinite."""
    floats = np.asarray(pushable.floats)
    if np.isfinite(floats).all():  # the usual case, for speed
        return []
    row_layout, found = make_row_layout(layout), []
    for segment in row_layout.segments:
        start = segment.start - row_layout.coded
        if start >= 0 and not np.isfinite(floats[start : start + segment.size]).all():
            found.append(layout.names[segment.variable])
    return found


def parts_by_ps(pushable: Pushable, shards: Sequence[Shard], packing: Packing) -> list[bytes]:
    """Returns the bytes that each ps gets of a gradient; `packing` packs the codes.

    Raises:
      ValueError: a codec has written codes beyond its largest one.
    """
    units, words = np.asarray(pushable.units), np.asarray(pushable.words).reshape(-1)
    floats, statistics = np.asarray(pushable.floats), np.asarray(pushable.statistics)
    found, word, value = [], 0, 0
    for shard in shards:
        parts = [
            *(units[r.scale : r.scale + r.parts.count] for r in shard.coded_ranges),
            floats[value : value + shard.floats],
            statistics[: shard.statistics],
        ]
        own = words[word : word + shard.words]
        planes = own.reshape(-1, plane_count(shard.largest))
        if own.size and not fits(planes, shard.coded, shard.largest):
            limit = shard.largest
            raise ValueError(f"sums of codes are out of range; allowed are -{limit} to {limit}")
        codes = packing.pack(own.data, shard.largest) if own.size else b""
        found.append(b"".join([*(part.tobytes() for part in parts), codes]))
        word, value = word + shard.words, value + shard.floats
    return found
