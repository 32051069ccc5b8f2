"""The comparison of the workers of `fit` before the first step: models, settings, callbacks.

Settings are compared field by field.
"""

from __future__ import annotations

import functools
import inspect
import types
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.library.group import Group
from terngrad.library.keras import internals, program_warnings, state
from terngrad.library.keras.optimizer import updates_of

# Callbacks that change the training of a worker that has them, so that all must have them.
_CHANGING = ("LearningRateScheduler", "ReduceLROnPlateau", "SwapEMAWeights")
_OF_OUTPUT = ("name", "verbose")  # fields that do not change the training
_OF_SAVED = ("class_name", "config", "module", "registered_name")  # keys of what Keras serializes
_START = "the start of fit"


def agree_on_model(
    group: Group, model: keras.Model, optimizers: Sequence[keras.optimizers.Optimizer], params: dict
) -> None:
    """Builds on all workers what the chief has built, then compares models and optimizers.

    Args:
      group: the processes, which all call this.
      model: of this worker.
      optimizers: the distributed ones of the model.
      params: what Keras tells its callbacks.

    Raises:
      MembershipError: names the first field that differs, and both values.
    """
    own = [[optimizer.built, updates_of(optimizer)] for optimizer in optimizers]
    states = group.all_gather_object(own, what=_START)
    for optimizer, (is_built, _) in zip(optimizers, states[0], strict=False):
        if is_built and not optimizer.built and optimizer is model.optimizer:
            optimizer.build(model.trainable_variables)
    settings = of_optimizers(optimizers)
    if any([n for _, n in each] != [n for _, n in states[0]] for each in states):
        settings = _without_state(settings)  # the chief's are those of its backup
    others = {
        "optimizers": ", ".join(
            internals.own_class(optimizer).__name__ for optimizer in optimizers
        ),
        "optimizers that are built": str([optimizer.built for optimizer in optimizers]),
        "epochs": str(params.get("epochs")),
        "steps of an epoch (use group.shard)": str(params.get("steps")),
        "weights of the model": state.described(model),
        "random layers of the model": str(len(state.seed_states(model))),
        "what layers have learned (adapt them to the same data)": state.learned(model),
    }
    group.agree({**settings, **_of_loss(model), **others}, _START)


def configuration_of_elastic(
    model: keras.Model,
    optimizers: Sequence[keras.optimizers.Optimizer],
    callbacks: Sequence[keras.callbacks.Callback],
    params: dict,
) -> dict[str, str]:
    """Returns the settings that a late worker compares: those that a training does not change.

    Args:
      model: of this worker, built.
      optimizers: the distributed ones of the model.
      callbacks: of this worker, without those that only the chief has.
      params: what Keras tells its callbacks.
    """
    return {
        **_without_state(of_optimizers(optimizers)),
        **_of_loss(model),
        "epochs": str(params.get("epochs")),
        "steps of an epoch (use group.shard)": str(params.get("steps")),
        "weights of the model": state.described(model),
        "random layers of the model": str(len(state.seed_states(model))),
        "what layers have learned (adapt them to the same data)": state.learned(model),
        "callbacks that all workers need, because they change the training": changing(callbacks),
    }


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
    fields = {**_of_metrics(model), **_of_callbacks(callbacks)}
    own = _numbers_of_own_callbacks(callbacks)
    rows = group.all_gather_object({"fields": fields, "own": own}, what=_START)
    common = set(fields).intersection(*(row["fields"] for row in rows))
    shared = {name: fields[name] for name in common}
    needed = "callbacks that all workers need, because they change the training"
    group.agree({**shared, needed: changing(callbacks)}, _START)
    if group.is_chief and (found := differing(_without_ranks(rows))):
        program_warnings.warn(f"{found}: if it changes the training, give all the same")


def agree_on_rates(group: Group, optimizers: Sequence[keras.optimizers.Optimizer]) -> None:
    """Compares the learning rates of the first step, which callbacks may have set.

    Raises:
      MembershipError: names the optimizer, and both rates.
    """
    found = rates(optimizers)
    group.agree({name: repr(rate) for name, rate in found.items()}, "the start of an epoch")


def _without_ranks(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Returns numbers of callbacks without those that are each worker's rank, or `is_chief`."""
    found = [dict(row["own"]) for row in rows]
    ranks = [name for name in found[0] if _is_rank([row.get(name) for row in found])]
    return [{name: row[name] for name in row if name not in ranks} for row in found]


def _is_rank(values: Sequence[Any]) -> bool:
    is_chief = [rank == 0 for rank in range(len(values))]
    is_bool = all(isinstance(value, bool) for value in values)  # 1 and 0 may be a setting
    return values == [*range(len(values))] or (is_bool and values == is_chief)


def of_optimizers(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, str]:
    """Returns the fields of optimizers, such as "optimizer Adam: beta_1"."""
    found = {}
    for name, optimizer in _named("optimizer", optimizers):
        found |= _fields(name, optimizer)
    return found


def _of_loss(model: keras.Model) -> dict[str, str]:
    """Returns the fields of a compiled model's loss and their weights."""
    found = dict(_flat("loss", getattr(model, "loss", None)))
    return found | dict(_flat("loss_weights", internals.loss_weights(model)))


def _of_metrics(model: keras.Model) -> dict[str, str]:
    """Returns the fields of a compiled model's metrics, such as "metrics AUC: num_thresholds"."""
    given = internals.metrics(model).items()
    return {name: value for kind, each in given for name, value in _metrics_in(kind, each)}


def _of_callbacks(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, str]:
    """Returns the fields of Keras' own callbacks, such as "callback EarlyStopping: patience".

    Those with a monitor have their fields a second time, for workers with other numbers of them.
    """
    own = [each for each in callbacks if internals.is_of_keras(type(each))]
    monitors = [getattr(each, "monitor", None) for each in own]
    numbers = _ordinals(
        [(type(each), monitor) for each, monitor in zip(own, monitors, strict=True)]
    )
    found = {}
    for (name, callback), monitor, number in zip(
        _named("callback", own), monitors, numbers, strict=True
    ):
        for field, value in _attributes(callback):
            found[f"{name}: {field}"] = value
            if monitor is not None:
                kind = f"callback {type(callback).__name__}"
                found[f"{kind}: {field} with monitor {monitor}{number}"] = value
    return found


def _numbers_of_own_callbacks(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, float]:
    """Returns the numbers in the attributes of callbacks that are not of Keras."""
    own = (each for each in callbacks if not internals.is_of_keras(type(each)))
    return {
        f"{name}: {field}": value
        for name, callback in _named("callback", own)
        for field, value in vars(callback).items()
        if isinstance(value, (bool, int, float)) and field not in _OF_OUTPUT
    }


def changing(callbacks: Iterable[keras.callbacks.Callback]) -> str:
    """Returns the names of callbacks that all workers must have."""
    names = sorted(type(each).__name__ for each in callbacks if internals.is_of_keras(type(each)))
    return ", ".join(name for name in names if name in _CHANGING) or "none"


def _without_state(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns fields without learning rates, which a training may have changed."""
    return {name: value for name, value in fields.items() if not name.endswith("learning_rate")}


def rates(optimizers: Iterable[keras.optimizers.Optimizer]) -> dict[str, float]:
    """Returns the learning rates of optimizers, as they are now."""
    found = {}
    for name, optimizer in _named("optimizer", optimizers):
        rate = getattr(optimizer, "learning_rate", None)
        if rate is not None:
            found[f"{name}: learning_rate"] = float(keras.ops.convert_to_numpy(rate))
    return found


def differing(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the first field that all rows have and that differs, with two values, or ""."""
    common = set(rows[0]).intersection(*rows[1:])
    for name in sorted(common):
        for rank, row in enumerate(rows):
            if repr(row[name]) != repr(rows[0][name]):  # nan differs from itself
                return f"{name} is {row[name]} on worker {rank} and {rows[0][name]} on worker 0"
    return ""


def _named(kind: str, objects: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yields names such as "callback EarlyStopping", with a number if there are several."""
    objects = list(objects)
    names = [internals.own_class(each).__name__ for each in objects]
    for name, number, each in zip(names, _ordinals(names), objects, strict=True):
        yield f"{kind} {name}{number}", each


def _ordinals(keys: Sequence[Any]) -> list[str]:
    """Returns " 1 of 2" and the like for equal keys, "" for others.

    Workers with unequally many objects of a kind have none of these names in common, because of the
    total: it is not known which objects correspond.
    """
    totals, counts, found = Counter(keys), Counter(), []
    for key in keys:
        counts[key] += 1
        found.append(f" {counts[key]} of {totals[key]}" if totals[key] > 1 else "")
    return found


def _metrics_in(name: str, given: Any) -> Iterator[tuple[str, str]]:
    """Yields the fields of metrics by their names, which may be in lists and dicts by outputs."""
    if isinstance(given, Mapping):
        for key in sorted(given, key=str):
            yield from _metrics_in(f"{name}.{key}", given[key])
    elif isinstance(given, (list, tuple)) and any(isinstance(e, (list, tuple)) for e in given):
        for i, part in enumerate(given):
            yield from _metrics_in(f"{name}[{i}]", part)
    elif given is not None:
        metrics = given if isinstance(given, (list, tuple)) else [given]
        names = [_metric(metric) for metric in metrics]
        for metric, own, number in zip(metrics, names, _ordinals(names), strict=True):
            yield from _flat(f"{name} {own}{number}", metric)


def _metric(given: Any) -> str:
    """Returns the name of a metric; its class if Keras has chosen the name, perhaps with a number.

    That number counts the objects of the process, which workers may have unequally many of.
    """
    if isinstance(given, str):
        return given
    kind = type(given).__name__
    if not isinstance(given, keras.metrics.Metric):
        return getattr(given, "__name__", kind)
    is_chosen = given.name.rstrip("_0123456789").replace("_", "") == kind.lower()
    return kind if is_chosen else given.name


def _fields(name: str, thing: Any) -> dict[str, str]:
    """Returns the class of an object of Keras and the fields of its configuration."""
    found = {name: internals.own_class(thing).__name__}
    try:
        config = internals.settings_of(thing)
    except Exception:  # of the user's own code; Keras calls it only to save models
        return found
    for field, value in config.items():
        if field not in _OF_OUTPUT:
            found |= dict(_flat(f"{name}: {field}", value))
    return found


def _attributes(callback: keras.callbacks.Callback) -> Iterator[tuple[str, str]]:
    left_out = {*_OF_OUTPUT, "params", *internals.REMEMBERED.get(type(callback).__name__, ())}
    for field, value in vars(callback).items():
        is_setting = not field.startswith(("_", "on_")) and field not in left_out
        if is_setting and (isinstance(value, (bool, int, float, str)) or callable(value)):
            yield from _flat(field, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields a value's fields; paths and the code of functions may differ between hosts."""
    if isinstance(value, Mapping) and "class_name" in value:  # as Keras serializes objects
        yield name, _class(value)
        if isinstance(config := value.get("config"), Mapping) and _class(value) != "__lambda__":
            yield from _flat(name, {k: v for k, v in config.items() if k not in _OF_SAVED})
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            if key not in _OF_OUTPUT:
                yield from _flat(f"{name}.{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _flat(f"{name}[{i}]", part)
    elif isinstance(value, (keras.losses.Loss, keras.metrics.Metric)):
        yield from _fields(name, value).items()
    elif value is None or isinstance(value, (bool, int, float, str, np.generic)):
        yield name, _short(value.item() if isinstance(value, np.generic) else value)
    elif isinstance(value, (np.ndarray, tf.Tensor, tf.Variable, keras.Variable)):
        array = keras.ops.convert_to_numpy(value)
        content = zlib.crc32(np.ascontiguousarray(array).tobytes())
        yield name, _short(array.item()) if array.ndim == 0 else f"{array.shape} ({content:08x})"
    else:
        yield name, getattr(value, "__name__", type(value).__name__)
        yield from ((f"{name}.{key}", _short(part)) for key, part in _numbers_of_function(value))


def _numbers_of_function(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields numbers that a function takes from where it was made."""
    if isinstance(function, functools.partial):
        found = function.keywords
    elif isinstance(function, types.FunctionType):
        found = inspect.getclosurevars(function).nonlocals | {
            name: parameter.default
            for name, parameter in inspect.signature(function).parameters.items()
        }
    else:
        return
    yield from ((key, part) for key, part in found.items() if isinstance(part, (bool, int, float)))


def _class(saved: Mapping[str, Any]) -> str:
    config = saved.get("config")
    return config if saved["class_name"] == "function" else str(saved["class_name"])


def _short(value: Any) -> str:
    """Returns a number as the program has written it, not as float32 has rounded it."""
    is_rounded = isinstance(value, float) and float(np.float32(value)) == value
    return str(np.float32(value)) if is_rounded else repr(value)
