"""Steps whose means are coded again, with gradients that depend on the step and the node only."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.exchange import Exchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.gradient_kernels import GradientKernels
from terngrad.planes import SUM_BLOCK
from terngrad.training.reduction import Aggregate, Reduction

SHAPES = ((7, 500), (3 * SUM_BLOCK,))
_NAMES, _SEED = ("a/kernel", "b/kernel"), 3


def reduction_of(
    exchange: Exchange, kernels: GradientKernels, step: tf.Variable | None = None
) -> Reduction:
    """Returns a reduction with an empty memory of gradients of `SHAPES`."""
    policy = Policy(grad_bits=1, sum_codec="ternary", size_to_binarize=0)
    codecs = make_codecs(make_layout(_NAMES, SHAPES, policy), kernels)
    step = tf.Variable(0, dtype=tf.int64) if step is None else step
    return Reduction(codecs, exchange, step, _SEED)


def reduced(reduction: Reduction, step: tf.Tensor, nodes: Iterable[int]) -> Aggregate:
    """Exchanges the gradients of some nodes at a step, int64."""
    at = tf.cast(step, tf.int64)
    seeds = lambda node: tf.stack([at, tf.constant(node, tf.int64)])
    gradients = [[tf.random.stateless_normal(s, seeds(node)) for s in SHAPES] for node in nodes]
    keys = [DrawKey(tf.constant(_SEED, tf.uint64), at, tf.constant(node)) for node in nodes]
    return reduction.reduce(gradients, keys)


def means_of(reduction: Reduction, step: tf.Tensor, nodes: Iterable[int]) -> list[tf.Tensor]:
    """Makes a step of some nodes; returns the mean gradients, float32 of `SHAPES`."""
    found = reduced(reduction, step, nodes)
    reduction.remember(found)
    return found.means
