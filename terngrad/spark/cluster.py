"""A cluster of workers and parameter servers inside the executors of Spark.

    cluster = run(spark, main, arguments, num_workers=4, num_ps=1)
    cluster.shutdown()

calls `main(arguments, context)` on each worker and ps, in a process of its own. No list of hosts is
needed: the processes find each other through Spark. The driver shows their output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from terngrad.cluster import interfaces
from terngrad.spark.certificates import make_certificates
from terngrad.spark.context import Context
from terngrad.spark.dealing import deal
from terngrad.spark.driver import Driver, Placement
from terngrad.spark.jobs import Jobs, cores_of_task, is_cancelled, num_cores, reason
from terngrad.spark.task import SCHEMA, ProcessTask

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession

Main = Callable[[Any, Context], None]

_ATTEMPTS = 4  # of all processes together; Spark also tries a single one 4 times
_TASKS_PER_PROCESS = 4  # tasks for each process, so that all executors get one


class InputMode(enum.Enum):
    """Where the workers' data comes from."""

    TENSORFLOW = enum.auto()  # each worker reads its share of the records itself
    SPARK = enum.auto()  # Spark feeds the rows of a DataFrame or an RDD


class ClusterError(Exception):
    """The processes failed too often, have too few cores of executors, or were stopped before."""


def run(
    spark: SparkSession | SparkContext,
    main: Main,
    arguments: Any = None,
    num_workers: int = 1,
    num_ps: int = 0,
    input_mode: InputMode = InputMode.TENSORFLOW,
    *,
    start_secs: float = 600.0,
    show: Callable[[str], None] | None = None,
) -> Cluster:
    """Starts a cluster; with InputMode.SPARK each call of `train` does.

    Each process takes a core of an executor. Without ps the workers are the tasks of a barrier
    stage: if one fails, all of them start again, and `main` goes on from its checkpoint.
    With ps each process is a job of its own: Spark starts a lost one again, and it joins the
    others.

    Args:
      spark: the session, or the context of one.
      main: what each process does. It and its arguments must be picklable.
      arguments: first argument of `main`.
      num_workers: number of workers.
      num_ps: number of parameter servers.
      input_mode: where the workers' data comes from.
      start_secs: how long the executors may take until all processes have a core.
      show: takes each line that a process prints, after its label; None prints it.

    Raises:
      ValueError: a number is too small, or openssl is missing.
      ClusterError: there is no free core of an executor.
    """
    if num_workers < 1 or num_ps < 0:
        raise ValueError(f"num_workers={num_workers}, num_ps={num_ps}; allowed are 1 and 0 or more")
    from pyspark.sql import SparkSession

    session = spark if isinstance(spark, SparkSession) else SparkSession(spark)
    cluster = Cluster(session, main, arguments, num_workers, num_ps, input_mode, start_secs, show)
    if input_mode is InputMode.TENSORFLOW:
        cluster.start()
    return cluster


class Cluster:
    """A cluster; made by `run`."""

    def __init__(
        self,
        spark: SparkSession,
        main: Main,
        arguments: Any,
        num_workers: int,
        num_ps: int,
        input_mode: InputMode,
        start_secs: float,
        show: Callable[[str], None] | None,
    ) -> None:
        """See `run`."""
        from pyspark import cloudpickle

        self._spark = spark
        self._num_workers, self._num_ps = num_workers, num_ps
        self._input_mode = input_mode
        self._start_secs = start_secs
        host = spark.sparkContext.getConf().get("spark.driver.host")
        self._hosts = self._find_hosts(host)
        certificates = make_certificates(self._hosts)
        self._show = print if show is None else show
        self._driver = Driver(certificates, num_workers + num_ps, self._show)
        work = cloudpickle.dumps(main) + cloudpickle.dumps(arguments)
        self._task = ProcessTask(work, "worker", (host, self._driver.port), certificates)
        self._ended: Future[None] | None = None

    def start(self) -> None:
        """Starts the processes; they read their data themselves."""
        numbers = self._spark.range(0, self._num_workers, 1, self._num_workers)
        task = dataclasses.replace(self._task, gathers_in_barrier=not self._num_ps)
        self._ended = self._start(numbers, task)

    def train(self, data: DataFrame | RDD, epochs: int = 1) -> None:
        """Feeds rows to the workers until all have ended; see `deal` for how many each gets.

        The rows travel as Arrow batches, and wait where a worker is slow. `main` gets them by
        `context.feed.batches`. It may end before it has seen all.

        Args:
          data: rows; those of an RDD must be ones that `spark.createDataFrame` takes.
          epochs: how often each worker gets its rows. From the second epoch on they come from a
            file on the worker's machine.

        Raises:
          ValueError: the cluster's workers read their data themselves, or `epochs` is below 1.
          ClusterError: a process failed too often, or `stop` was called before.
          KeyboardInterrupt: see `shutdown`.
        """
        self._check_not_stopped()
        if self._input_mode is not InputMode.SPARK:
            raise ValueError("train needs a cluster that was made with InputMode.SPARK")
        if epochs < 1:
            raise ValueError(f"epochs={epochs}; allowed are 1 and more")
        frame, num_rows = deal(self._frame(data), self._num_workers)
        task = dataclasses.replace(
            self._task,
            gathers_in_barrier=not self._num_ps,
            epochs=epochs,
            num_rows=num_rows,
        )
        self._wait(self._start(frame, task))

    def inference(self, data: DataFrame | RDD, schema: str) -> DataFrame:
        """Returns the results of `main` for all rows, which Spark computes when they are needed.

        Each partition has a process of its own. There `main` reads `context.feed.batches` and
        gives as many results with `context.feed.give`, in the order of the rows.

        Args:
          data: see `train`.
          schema: names and types of the results, such as "label int, probability float".

        Raises:
          ValueError: Spark cannot read the schema.
          ClusterError: `stop` was called before.
        """
        self._check_not_stopped()
        try:
            wanted = self._spark.createDataFrame([], schema).toArrow().schema
        except Exception as error:  # of pyspark
            raise ValueError(f"schema {schema!r}: {reason(error)}") from error
        task = dataclasses.replace(self._task, job="inference", epochs=1, schema=wanted)
        return self._frame(data).mapInArrow(task, schema)

    def stop(self) -> None:
        """Sends SIGTERM to all processes: the suite's programs save and end.

        An inference without all its results fails. The cluster starts no other training or
        inference.
        """
        self._driver.stop()

    def shutdown(self) -> None:
        """Waits until all processes have ended.

        Raises:
          ClusterError: a process failed too often.
          KeyboardInterrupt: Ctrl-C stopped the cluster, and the processes have ended; or a second
            one ended them.
        """
        try:
            if self._ended:
                self._wait(self._ended)
        finally:
            self._driver.close()

    def _start(self, data: DataFrame, task: ProcessTask) -> Future[None]:
        """Returns what will have the end of all processes, or why they failed."""
        from pyspark import InheritableThread

        ended = Future[None]()

        def run_all() -> None:
            try:
                ended.set_result(self._run(data, task))
            except BaseException as error:
                ended.set_exception(error)

        InheritableThread(target=run_all, daemon=True).start()
        return ended

    def _wait(self, ended: Future[None]) -> None:
        try:
            with _without_handler_of_pyspark():
                ended.result()
        except KeyboardInterrupt:
            self.stop()
            ended.exception()  # waits
            raise

    def _check_not_stopped(self) -> None:
        if self._driver.is_stopped:
            raise ClusterError("the cluster was stopped; make another one with run")

    def _frame(self, data: DataFrame | RDD) -> DataFrame:
        return data if hasattr(data, "mapInArrow") else self._spark.createDataFrame(data)

    def _run(self, data: DataFrame, task: ProcessTask) -> None:
        """Runs all processes to their end, several times if they fail.

        Raises:
          ClusterError: they failed too often or after `stop`, the user has cancelled the jobs, or
            they do not all get a core.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if (failure := self._try(data, task)) is None:
                return
            error, may_go_on = failure
            if attempt == _ATTEMPTS or not may_go_on or self._driver.is_stopped:
                raise ClusterError(reason(error)) from error
            self._show(f"All processes start again, attempt {attempt + 1}: {reason(error)}")

    def _try(self, data: DataFrame, task: ProcessTask) -> tuple[Exception, bool] | None:
        """Runs all processes; returns why one failed, and whether all may start again."""
        placement = Placement(self._num_workers, self._num_ps, self._hosts)
        self._driver.serve(placement)
        rdds = self._rdds(data, task)
        context = self._spark.sparkContext
        jobs = Jobs(context, rdds, lambda: placement.end("the other processes have ended"))
        if not placement.wait_for_start(self._start_secs):
            too_few = self._too_few(placement.num_running)
            placement.end(too_few)
            jobs.cancel()
            raise ClusterError(too_few)
        if placement.is_stopped:
            jobs.cancel()
            return None
        jobs.wait()
        self._driver.show_rest()
        if not jobs.failures:
            return None
        # Spark does not repeat the last stage of a barrier job. Any other failed process it has
        # started again as often as it may.
        first = jobs.failures[0]
        return first, not is_cancelled(first) and (not self._num_ps or bool(placement.moved))

    def _rdds(self, data: DataFrame, task: ProcessTask) -> list[tuple[RDD, Sequence[int]]]:
        """Returns the jobs: all workers in one, or one for each process; distributes the rows."""
        workers = data.mapInArrow(task, SCHEMA, barrier=not self._num_ps).rdd
        if not self._num_ps:
            return [(workers, range(self._num_workers))]
        numbers = self._spark.range(0, self._num_ps, 1, self._num_ps)
        ps = numbers.mapInArrow(dataclasses.replace(task, job="ps", epochs=0), SCHEMA).rdd
        each_ps = [(ps, [i]) for i in range(self._num_ps)]
        return [*each_ps, *((workers, [i]) for i in range(self._num_workers))]

    def _find_hosts(self, driver: str) -> list[str]:
        """Returns the addresses of the driver and of executors that can hold all processes.

        Raises:
          ClusterError: no executor has a free core.
        """
        context = self._spark.sparkContext
        tasks = _TASKS_PER_PROCESS * (self._num_workers + self._num_ps)
        hosts = context.parallelize(range(tasks), tasks).map(lambda _: interfaces.published(driver))
        jobs = Jobs(context, [(hosts, range(tasks))])
        if not jobs.wait(self._start_secs):
            jobs.cancel()
            raise ClusterError(self._too_few(0))
        if jobs.failures:
            raise ClusterError(reason(jobs.failures[0])) from jobs.failures[0]
        return sorted({driver, "127.0.0.1", *jobs.results})

    def _too_few(self, running: int) -> str:
        context, total = self._spark.sparkContext, self._num_workers + self._num_ps
        there, needed = num_cores(context), total * cores_of_task(context)
        return (
            f"only {running} of {total} processes run after {self._start_secs:.0f} s: they need "
            f"{needed} free cores of executors at once, and there are {there}"
            + (", which other jobs may use" if there >= needed else "")
        )


@contextlib.contextmanager
def _without_handler_of_pyspark() -> Iterator[None]:
    """Ctrl-C only raises KeyboardInterrupt; pyspark's handler kills all processes before that."""
    former = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not str(getattr(former, "__module__", "")).startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
