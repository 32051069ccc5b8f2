"""What the workers of `fit` compare before the first step: models, settings, and callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from terngrad.library import keras_settings, keras_state, program_warnings
from terngrad.library.group import Group
from terngrad.library.keras_exchange import updates_of

_START = "the start of fit"


def agree_on_model(
    group: Group, model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer], params: dict
) -> None:
    """Lets the others build what the chief has built, then compares models and optimizers.

    Args:
      group: the processes, which all call this.
      model: of this worker.
      optimizers: the distributed ones of the model.
      params: what Keras tells its callbacks.

    Raises:
      MembershipError: names the first field that differs, and both values.
    """
    state = [[optimizer.built, updates_of(optimizer)] for optimizer in optimizers]
    states = group.all_gather_object(state, what=_START)
    for optimizer, (is_built, _) in zip(optimizers, states[0], strict=False):
        if is_built and not optimizer.built and optimizer is model.optimizer:
            optimizer.build(model.trainable_variables)
    settings = keras_settings.of_optimizers(optimizers)
    if any([n for _, n in each] != [n for _, n in states[0]] for each in states):
        settings = keras_settings.without_state(settings)  # the chief's are those of its backup
    facts = {
        "optimizers": ", ".join(optimizer.__class__.__name__ for optimizer in optimizers),
        "optimizers that are built": str([optimizer.built for optimizer in optimizers]),
        "epochs": str(params.get("epochs")),
        "steps of an epoch (use group.shard)": str(params.get("steps")),
        "weights of the model": keras_state.described(model),
        "random layers of the model": str(len(keras_state.seed_states(model))),
        "what layers have learned (adapt them to the same data)": keras_state.learned(model),
    }
    group.agree({**settings, **keras_settings.of_loss(model), **facts}, _START)


def agree_on_callbacks(
    group: Group, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]
) -> None:
    """Compares metrics and callbacks; a worker may have some that others do not have.

    Args:
      group: the processes, which all call this.
      model: of this worker.
      callbacks: of this worker, without those that only the chief has.

    Raises:
      MembershipError: names the first field that differs, and both values.
    """
    fields = {**keras_settings.of_metrics(model), **keras_settings.of_callbacks(callbacks)}
    own = keras_settings.numbers_of_own_callbacks(callbacks)
    rows = group.all_gather_object({"fields": fields, "own": own}, what=_START)
    common = set(fields).intersection(*(row["fields"] for row in rows))
    facts = {name: fields[name] for name in common}
    changing = "callbacks that all workers need, because they change the training"
    group.agree({**facts, changing: keras_settings.changing(callbacks)}, _START)
    if group.is_chief and (found := keras_settings.differing(_without_ranks(rows))):
        program_warnings.warn(f"{found}: if it changes the training, give all the same")


def agree_on_rates(group: Group, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Compares the learning rates of the first step, which callbacks may have set.

    Raises:
      MembershipError: names the optimizer, and both rates.
    """
    rates = keras_settings.rates(optimizers)
    group.agree({name: repr(rate) for name, rate in rates.items()}, "the start of an epoch")


def _without_ranks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns numbers of callbacks without those that are each worker's rank, or `is_chief`."""
    found = [dict(row["own"]) for row in rows]
    ranks = [name for name in found[0] if _is_rank([row.get(name) for row in found])]
    return [{name: row[name] for name in row if name not in ranks} for row in found]


def _is_rank(values: Sequence[Any]) -> bool:
    is_chief = [rank == 0 for rank in range(len(values))]
    is_bool = all(isinstance(value, bool) for value in values)  # 1 and 0 may be a setting
    return values == [*range(len(values))] or (is_bool and values == is_chief)
