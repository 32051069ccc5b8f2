"""`terngrad.keras.distribute`: an optimizer of Keras that exchanges gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeVar

import keras

from terngrad.layout import DEFAULT_BUCKET_ELEMENTS, EXACT, FEEDBACK_CODES, MAX_CODES
from terngrad.library.group import Group
from terngrad.library.keras.optimizer import (
    GradientExchange,
    attach,
    exchange_of,
    with_inner_optimizers,
)
from terngrad.library.reducer_settings import (
    DEFAULT_GRADIENTS,
    check_group,
    check_settings,
    with_suited,
)

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)

_LEAST_EPSILON = 1e-16  # of Adafactor: smaller products of a row's and a column's are 0


def distribute(
    optimizer: Optimizer,
    group: Group,
    *,
    gradients: str | type = DEFAULT_GRADIENTS,
    clip_factor: float | None = None,
    scale_by: str | None = None,
    size_to_binarize: int | None = None,
    float_layers: Sequence[str] = (),
    seed: int = 1,
    nodes: int = 1,
    bucket_elements: int = DEFAULT_BUCKET_ELEMENTS,
    draws: str | None = None,
    sum_codec: str = EXACT,
    memory_decay: float = 1.0,
) -> Optimizer:
    """Makes an optimizer apply the mean gradients of all processes; returns the same optimizer.

    The exchange comes before all that the optimizer does with gradients, such as clipping, so that
    the optimizer sees what one process with the whole batch would show it. An optimizer that
    accumulates gradients exchanges their sum, only when an update is due. Models that use the
    optimizer are saved, and loaded elsewhere, as with the optimizer alone.

    Distribute the outermost optimizer: a LossScaleOptimizer or a MultiOptimizer, not one within it.

    Args:
      optimizer: any optimizer of Keras, or a subclass of one.
      group: the processes, from `terngrad.join`.
      gradients: "7-level", "ternary", "5-level", "15-level", "255-level", "ternary-feedback",
        "5-level-feedback", "float32", "float16" or a codec; see `terngrad.Reducer`.
      clip_factor: clip a gradient to this many standard deviations, or root mean squares, before it
        is encoded; 0 = no clipping. None = what suits `gradients`, see `terngrad.Reducer`.
      scale_by: which values share a scale: "variable", all of a variable; "channel", those of an
        output channel; "block:N", N neighbours. None = what suits `gradients`.
      size_to_binarize: variables with fewer elements stay float. None = what suits `gradients`.
      float_layers: layers whose variables stay float: the part of a variable's `path` before the
        last "/".
      seed: of the random codes; all processes need the same.
      nodes: into how many parts `DistributedCallback` splits each batch of this process. Each part
        is the batch of a node, whose gradients are encoded by themselves: one process of N nodes
        trains as N processes of one node do.
      bucket_elements: a bucket takes variables until it holds this many values.
      draws: "independent" or "antithetic"; None = what suits `gradients`, see `terngrad.Reducer`.
      sum_codec: "exact" or "ternary"; see `terngrad.Reducer`.
      memory_decay: share of its memory that a codec with feedback adds to the next gradients, and
        the owner of a share of coded means to its next ones.

    Raises:
      TypeError: `optimizer` is not an optimizer of Keras, or a setting has another type.
      ValueError: a setting is wrong, the optimizer is distributed already or accumulates gradients
        of several nodes, or Keras does not run on TensorFlow.
    """
    _check(optimizer, group, nodes)
    settings = with_suited(
        gradients,
        clip_factor=clip_factor,
        scale_by=scale_by,
        size_to_binarize=size_to_binarize,
        float_layers=float_layers,
        seed=seed,
        nodes=nodes,
        bucket_elements=bucket_elements,
        draws=draws,
        sum_codec=sum_codec,
        memory_decay=memory_decay,
    )
    check_settings(**settings)
    kinds = [
        type(part).__name__ for part in with_inner_optimizers(optimizer) if _has_tiny_epsilon(part)
    ]
    if kinds and gradients in MAX_CODES | FEEDBACK_CODES and group.is_chief:
        warnings.warn(
            f"distribute: {kinds[0]} with an epsilon_1 below {_LEAST_EPSILON} makes weights NaN "
            "where a row and a column of a gradient are all zero, as often in coded ones; take "
            "epsilon_1=1e-12",
            stacklevel=2,
        )
    settings["float_layers"] = tuple(float_layers)
    attach(optimizer, GradientExchange(group, settings))
    return optimizer


def _check(optimizer: keras.optimizers.Optimizer, group: Group, nodes: int) -> None:
    """Raises TypeError or ValueError if gradients of an optimizer cannot be exchanged."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"distribute: Keras runs on {keras.backend.backend()}; allowed is tensorflow: set "
            "KERAS_BACKEND=tensorflow"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"distribute: the optimizer is {optimizer!r}; allowed are objects of the classes in "
            "keras.optimizers, such as keras.optimizers.Adam(1e-3)"
        )
    check_group("distribute", group)
    if exchange_of(optimizer) is not None:
        raise ValueError(f"distribute: the optimizer {optimizer.name} is distributed already")
    if group.asynchronous:
        raise ValueError(
            "distribute: the group is asynchronous: its servers apply gradients, by optimizers of "
            "their own instead of Keras'; allowed is terngrad.AsynchronousTraining in a train_step "
            "or a loop"
        )
    if nodes > 1 and optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"distribute: nodes is {nodes}; an optimizer with gradient_accumulation_steps adds up "
            "the gradients of one node: allowed is 1"
        )


def _has_tiny_epsilon(optimizer: keras.optimizers.Optimizer) -> bool:
    is_adafactor = isinstance(optimizer, keras.optimizers.Adafactor)
    return is_adafactor and optimizer.epsilon_1 < _LEAST_EPSILON
