"""Runs a function with many combinations of arguments, each on an executor of Spark."""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 4  # of a task, if spark.task.maxFailures does not say otherwise

Arguments = Mapping[str, Any]


class LaunchError(Exception):
    """The function failed with some combinations.

    Attributes:
      results: what it returned with the others, in their order; None in the place of a failure.
    """

    def __init__(self, message: str, results: list[Any]) -> None:
        super().__init__(message)
        self.results = results


class _Outcome(NamedTuple):
    """A result, or the text of an error."""

    index: int
    result: Any
    error: str | None = None


def launch(
    spark: SparkSession,
    fn: Callable[..., Any],
    values: Mapping[str, Sequence[Any]],
    *,
    product: bool = False,
) -> list[Any]:
    """Calls `fn(**arguments)` for each combination of arguments, as a task of its own.

        launch(spark, train, {"learning_rate": [0.1, 0.01], "dropout": [0.5, 0.7]})

    calls train(learning_rate=0.1, dropout=0.5) and train(learning_rate=0.01, dropout=0.7). Spark
    runs as many at once as it has cores (see spark.task.cpus), and tries one that failed again.

    Args:
      spark: the session.
      fn: the function. It and what it returns must be picklable.
      values: the values of each argument; lists of equal length, or of any with `product`.
      product: call it with all combinations of the values; the last argument changes fastest.

    Returns:
      The results in the order of the combinations.

    Raises:
      ValueError: there is no argument or no value, or the lists differ in length.
      LaunchError: the last attempt failed with some combinations; they are named.
    """
    chosen = combinations(values, product)
    context = spark.sparkContext
    attempts = _attempts(context.master, context.getConf().get("spark.task.maxFailures"))

    def run(items: Iterator[tuple[int, Arguments]]) -> Iterator[_Outcome]:
        return (_call(fn, index, arguments, attempts) for index, arguments in items)

    tasks = context.parallelize(list(enumerate(chosen)), len(chosen))
    outcomes = sorted(tasks.mapPartitions(run).collect())
    failures = [(chosen[outcome.index], outcome.error) for outcome in outcomes if outcome.error]
    results = [outcome.result for outcome in outcomes]
    if failures:
        named = "\n".join(f"{dict(arguments)}: {error}" for arguments, error in failures)
        raise LaunchError(f"{len(failures)} of {len(chosen)} calls failed:\n{named}", results)
    return results


def combinations(values: Mapping[str, Sequence[Any]], product: bool) -> list[Arguments]:
    """Returns the combinations that `launch` calls the function with."""
    lengths = {name: len(given) for name, given in values.items()}
    if not lengths or not all(lengths.values()):
        raise ValueError(f"each argument needs at least one value; the numbers are {lengths}")
    if product:
        return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"without product=True all arguments need as many values; the numbers are {lengths}"
        )
    return [dict(zip(values, one, strict=True)) for one in zip(*values.values(), strict=True)]


def _attempts(master: str, max_failures: str | None) -> int:
    """Returns how often Spark tries a task. In one process (local[4]) that is part of the URL."""
    if local := re.fullmatch(r"local(?:\[[^,\]]+(?:,\s*(\d+))?\])?", master):
        return int(local[1] or 1)
    return int(max_failures or _ATTEMPTS)


def _call(fn: Callable[..., Any], index: int, arguments: Arguments, attempts: int) -> _Outcome:
    """Calls the function in a task. The last attempt returns its error, so that others go on."""
    from pyspark import TaskContext

    try:
        return _Outcome(index, fn(**arguments))
    except Exception:
        if TaskContext.get().attemptNumber() + 1 < attempts:
            raise
        return _Outcome(index, None, traceback.format_exc())
