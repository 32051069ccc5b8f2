"""Runs a function once for each combination of arguments, each time on an executor of Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from terngrad.spark.jobs import num_cores, python_traceback, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_AT_ONCE = 64  # jobs, each with a thread here, for executors that come later

Arguments = Mapping[str, Any]


class LaunchError(Exception):
    """The function failed with some combinations.

    Attributes:
      results: what it returned with the others, in their order; None in the place of a failure.
    """

    def __init__(self, message: str, results: list[Any]) -> None:
        super().__init__(message)
        self.results = results


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
    runs as many at once as it has cores (see spark.task.cpus). It tries one that failed again, also
    where a process or executor was lost. One that fails for good leaves the others alone.

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
    from pyspark import cloudpickle, inheritable_thread_target

    chosen = combinations(values, product)
    context = spark.sparkContext
    work = context.broadcast(cloudpickle.dumps(fn))  # once to each executor, not with each job

    def call(items: Iterator[Arguments]) -> list[Any]:
        return [cloudpickle.loads(work.value)(**arguments) for arguments in items]

    @inheritable_thread_target(spark)
    def run(arguments: Arguments) -> Any:
        try:
            return context.runJob(context.parallelize([arguments], 1), call)[0]
        except Exception as error:
            return _Failure(python_traceback(error) or reason(error))

    pool = ThreadPoolExecutor(min(len(chosen), max(_LEAST_AT_ONCE, num_cores(context))))
    try:
        results = list(pool.map(run, chosen))
    finally:
        pool.shutdown(cancel_futures=True)  # those that have not begun, after Ctrl-C
        work.destroy()
    failed = [(a, r) for a, r in zip(chosen, results, strict=True) if isinstance(r, _Failure)]
    if failed:
        named = "\n".join(f"{dict(arguments)}: {failure}" for arguments, failure in failed)
        kept = [None if isinstance(result, _Failure) else result for result in results]
        raise LaunchError(f"{len(failed)} of {len(chosen)} calls failed:\n{named}", kept)
    return results


class _Failure(str):
    """Why a call failed."""


def combinations(values: Mapping[str, Sequence[Any]], product: bool) -> list[Arguments]:
    """Returns the combinations with which `launch` calls the function."""
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
