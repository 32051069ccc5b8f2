"""Evaluation and prediction, split over the workers, with the results of one machine."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from terngrad.library.data_digest import digest
from terngrad.library.group import Group
from terngrad.library.keras import internals, state
from terngrad.library.reducer_settings import check_group
from terngrad.library.shard import row_count, rows_of, seeds_of

_BATCH = 32  # Keras' own default
_SUMS = "sums_over_workers"  # attribute of custom metrics
_ALLOWED = (
    "allowed are arrays, tensors, data frames and lists of strings or numbers, also in tuples, "
    "lists and dicts, tf.data.Dataset and keras.utils.PyDataset"
)
_MAX_BYTES = 1 << 22  # of predictions that a worker sends at once


def evaluate(
    model: keras.Model,
    data: Any,
    group: Group,
    *,
    batch_size: int | None = None,
    return_dict: bool = False,
    verbose: Any = 0,
) -> Any:
    """Returns what `model.evaluate` returns for all of the data, of which each worker has a part.

    Each batch is evaluated by one worker. The metrics' sums over all workers then give the results,
    the same on all workers, so batches may be uneven and workers may have unequally many.

    Args:
      model: compiled, with equal weights on all workers.
      data: all of it, the same on all: (x, y) or (x, y, sample_weight) of arrays; or batches of
        these, as a tf.data.Dataset or keras.utils.PyDataset.
      group: the processes, from `terngrad.join`, which all call this.
      batch_size: of arrays; None = 32.
      return_dict: return a dict by the metrics' names instead of a list or a number.
      verbose: see `model.evaluate`; for the chief.

    Raises:
      TypeError: the data is of another kind.
      ValueError: there is no data, or it has no labels for the loss; several workers were given a
        shuffled data set; the model has no weights yet; a metric is none of Keras and may be no sum
        over examples; or the model's own test_step returns values that are no metrics.
      MembershipError: models, weights or the amounts of data differ.
    """
    check_group("evaluate", group)
    _check_data(data, "evaluate")
    _check_labels(model, data)
    if group.size > 1:
        _agree(group, model, data, "evaluate")
    part, first = _shares(data, group, batch_size or _BATCH)
    run = lambda given, talk: _evaluate(model, given, batch_size, talk)
    logs = run(first if part is None else part, verbose if group.is_chief else 0)
    if part is None:  # the metrics have variables now, which add nothing to the sums
        model.reset_metrics()
    if group.size > 1:
        _check(model, logs)
        _add_up(group, [v for metric in _metrics(model) for v in metric.variables])
        found = model.get_metrics_result()
        logs = {name: _plain(found[name]) for name in sorted(found)}  # as Keras sorts them
    return logs if return_dict else internals.in_order(model, logs)


def predict(
    model: keras.Model,
    data: Any,
    group: Group,
    *,
    batch_size: int | None = None,
    verbose: Any = 0,
) -> Any:
    """Returns what `model.predict` returns for all of the data, of which each worker has a part.

    All workers get all predictions, in the order of the data.

    Args:
      model: with equal weights on all workers.
      data: all of it, the same on all: arrays [n, ...], one or several in a list, tuple or dict; or
        batches, as a tf.data.Dataset or keras.utils.PyDataset, with or without labels.
      group: the processes, from `terngrad.join`, which all call this.
      batch_size: of arrays; None = 32.
      verbose: see `model.predict`; for the chief.

    Raises:
      TypeError: the data is of another kind, or outputs are ragged or sparse.
      ValueError: there is no data; several workers were given a shuffled data set; or the model
        has no weights yet.
      MembershipError: models, weights or the amounts of data differ.
    """
    check_group("predict", group)
    _check_data(data, "predict")
    if group.size > 1:
        _agree(group, model, data, "predict")
    part, first = _shares(data, group, batch_size or _BATCH)
    talk = verbose if group.is_chief else 0
    given = first if part is None else part
    if _is_batches(data):
        outputs = [_of_batch(model, batch) for batch in given]
    else:
        outputs = [model.predict(given, batch_size=batch_size, verbose=talk)]
    like = outputs[0]
    _check_dense(like)
    outputs = [] if part is None else outputs
    sizes = [len(keras.tree.flatten(each)[0]) for each in outputs]
    all_sizes = group.all_gather_object(sizes, what="predict")
    leaves = []
    for i, leaf in enumerate(keras.tree.flatten(like)):
        own = [np.asarray(keras.tree.flatten(each)[i]) for each in outputs]
        own = np.concatenate(own) if own else np.asarray(leaf)[:0]
        leaves.append(_in_turn(_all_rows(group, own, all_sizes), all_sizes))
    return keras.tree.pack_sequence_as(like, leaves)


class _Part(keras.utils.PyDataset):
    """Every n-th batch of a data set."""

    def __init__(self, whole: keras.utils.PyDataset, indices: Sequence[int]) -> None:
        super().__init__()
        self._whole, self._indices = whole, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self._indices[index]]


def _shares(data: Any, group: Group, batch_size: int) -> tuple[Any, Any]:
    """Returns this worker's part, None if it has none, and a part that is not empty."""
    if isinstance(data, tf.data.Dataset):
        part = data if group.size == 1 else data.shard(group.size, group.rank)
        part, first = None if _is_empty(part) else part, data.take(1)
        if part is None and _is_empty(first):
            raise ValueError("evaluate and predict: the data has 0 batches")
        return part, first
    if isinstance(data, keras.utils.PyDataset):
        if (count := data.num_batches) is None:
            raise ValueError("evaluate and predict need a PyDataset that knows its length")
        own = range(group.rank, count, group.size)
        return (_Part(data, own) if own else None), _Part(data, range(1))
    rows = row_count(data)
    if not rows:
        raise ValueError("evaluate and predict: the data has 0 rows")
    each, rest = divmod(-(-rows // batch_size), group.size)
    start = batch_size * (each * group.rank + min(group.rank, rest))
    stop = start + batch_size * (each + (group.rank < rest))
    part = rows_of(data, slice(start, stop)) if start < rows else None
    return part, rows_of(data, slice(0, 1))


def _check_data(data: Any, what: str) -> None:
    """Raises TypeError or ValueError if this is no data to evaluate or predict."""
    if _is_batches(data):
        return
    if data is None:
        raise TypeError(f"{what}: the data is None; {_ALLOWED}")
    try:
        row_count(data)
    except TypeError as error:  # such as "shard: cannot deal out generator; allowed are"
        problem, _, _ = str(error).partition(";")
        raise TypeError(f"{problem.replace('shard', what, 1)}; {_ALLOWED}") from None
    except ValueError as error:
        raise ValueError(str(error).replace("shard", what, 1)) from None


def _check_labels(model: keras.Model, data: Any) -> None:
    """Raises ValueError if the loss has no labels; a PyDataset would have to be read for that."""
    ways = ("test_step", "compute_loss")  # custom ones may need none
    is_own = any(getattr(type(model), way) is not getattr(keras.Model, way) for way in ways)
    if is_own or getattr(model, "loss", None) is None or _is_py(data):
        return
    given = data.element_spec if isinstance(data, tf.data.Dataset) else data
    _, labels, _ = keras.utils.unpack_x_y_sample_weight(given)
    if labels is None:
        raise ValueError(
            "evaluate: the data has no labels, which the loss needs; allowed are (x, y) and "
            "(x, y, sample_weight)"
        )


def _is_batches(data: Any) -> bool:
    return isinstance(data, (tf.data.Dataset, keras.utils.PyDataset))


def _is_empty(dataset: tf.data.Dataset) -> bool:
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("evaluate and predict need data that ends: leave out repeat, or take(n)")
    if count == tf.data.UNKNOWN_CARDINALITY:
        return next(iter(dataset), None) is None
    return count == 0


def _agree(group: Group, model: keras.Model, data: Any, what: str) -> None:
    """Compares models, weights and amounts of data; warns of other data."""
    if not model.built:  # each worker would draw weights of its own
        raise ValueError(
            f"{what}: the model has no weights yet; allowed are models after fit or build"
        )
    if isinstance(data, tf.data.Dataset):
        if seeds_of(data):  # each worker would take its batches from an order of its own
            raise ValueError(f"{what}: the data set is shuffled; give it without shuffle")
        amount = f"{int(data.cardinality())} batches"
    elif isinstance(data, keras.utils.PyDataset):
        amount = f"{data.num_batches} batches"
    else:
        amount = f"{row_count(data)} rows"
    values = "checksum of the weights (after fit they are equal, or by group.broadcast)"
    compared = {
        "weights of the model": state.described(model),
        values: f"{state.digest(model):08x}",
        "data (give all workers all of it)": amount,
    }
    group.agree(compared, what)
    digests = group.all_gather_object(digest(data) if not _is_py(data) else "", what=what)
    if group.is_chief and len(set(digests)) > 1:
        warnings.warn(
            f"{what}: the workers have other data, or the same in another order, so some rows "
            "count twice and others never: give all the same, in the same order",
            stacklevel=3,
        )


def _is_py(data: Any) -> bool:
    return isinstance(data, keras.utils.PyDataset)


def _evaluate(
    model: keras.Model, data: Any, batch_size: int | None, verbose: Any
) -> dict[str, float]:
    if _is_batches(data):
        return model.evaluate(data, verbose=verbose, return_dict=True)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    return model.evaluate(x, y, batch_size, sample_weight=weight, verbose=verbose, return_dict=True)


def _metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns a model's metrics, also those within the one that `compile` makes."""
    found = [getattr(metric, "metrics", [metric]) for metric in model.metrics]
    return list({id(metric): metric for each in found for metric in each}.values())


def _check(model: keras.Model, logs: dict[str, Any]) -> None:
    """Raises ValueError where sums over workers would not give the results of one machine."""
    for metric in _metrics(model):
        is_mean = isinstance(metric, keras.metrics.Mean) and len(metric.variables) == 2
        if not (internals.is_of_keras(type(metric)) or is_mean or getattr(metric, _SUMS, False)):
            name = type(metric).__name__
            raise ValueError(
                f"evaluate: metric {metric.name} is a {name}, whose variables may be no sums over "
                f"examples; allowed are those of keras.metrics, and classes with {_SUMS} = True"
            )
    if others := sorted(set(logs) - set(model.get_metrics_result())):
        raise ValueError(
            f"evaluate: the model's test_step returns {', '.join(others)}, of which there is no "
            "metric; allowed are results of keras.metrics, such as a Mean in the model's metrics"
        )


def _add_up(group: Group, variables: Sequence[Any]) -> None:
    """Gives variables their sums over all workers."""
    values = [keras.ops.convert_to_numpy(variable) for variable in variables]
    row = np.concatenate([[0.0], *(value.astype(np.float64).ravel() for value in values)])
    total = group.all_gather(row, what="evaluate").sum(axis=0)[1:]
    ends = np.cumsum([value.size for value in values])
    for variable, value, part in zip(variables, values, np.split(total, ends), strict=False):
        variable.assign(part.reshape(value.shape).astype(value.dtype))


def _plain(value: Any) -> Any:
    array = keras.ops.convert_to_numpy(value)
    return float(array) if array.ndim == 0 else array


def _of_batch(model: keras.Model, batch: Any) -> Any:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
    return model.predict_on_batch(x)


def _check_dense(outputs: Any) -> None:
    for leaf in keras.tree.flatten(outputs):
        if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
            raise TypeError(f"predict: an output is a {type(leaf).__name__}; allowed are arrays")


def _all_rows(group: Group, own: np.ndarray, sizes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Returns the rows of all workers, which have unequally many."""
    counts = [sum(each) for each in sizes]
    of_row = own.dtype.itemsize * int(np.prod(own.shape[1:]))
    at_once = max(_MAX_BYTES // max(of_row, 1), 1)
    parts: list[list[np.ndarray]] = [[own[:0]] for _ in counts]
    for start in range(0, max(counts), at_once):
        stop = min(start + at_once, max(counts))
        block = np.zeros((stop - start, *own.shape[1:]), own.dtype)
        block[: len(own[start:stop])] = own[start:stop]
        for rank, rows in enumerate(group.all_gather(block, what="predict")):
            parts[rank].append(rows[: max(min(counts[rank], stop) - start, 0)])
    return [np.concatenate(each) for each in parts]


def _in_turn(rows: Sequence[np.ndarray], sizes: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the workers' batches one after the other, as one worker would have them."""
    by_worker = [
        np.split(each, np.cumsum(own)[:-1]) if own else []
        for each, own in zip(rows, sizes, strict=True)
    ]
    turns = itertools.zip_longest(*by_worker)
    return np.concatenate([batch for turn in turns for batch in turn if batch is not None])
