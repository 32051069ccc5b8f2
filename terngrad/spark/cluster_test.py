"""Clusters inside Spark: who runs where, with which rows, and what happens after a failure."""

import re
import threading

import pytest

from terngrad.spark.cluster import ClusterError, InputMode, run
from terngrad.spark.jobs import num_cores

pytestmark = pytest.mark.slow


class Shown(list):
    """The lines of a cluster."""

    def __init__(self):
        super().__init__()
        self._lock = threading.Lock()

    def __call__(self, line):
        with self._lock:
            self.append(line)

    def of(self, label):
        prefix = f"[{label}] "
        return [line.removeprefix(prefix) for line in self if line.startswith(prefix)]


@pytest.fixture
def shown():
    return Shown()


@pytest.fixture
def frame(spark):
    return spark.createDataFrame(
        [(number, bytes([number])) for number in range(21)], "n int, b binary"
    )


@pytest.mark.parametrize(
    ("workers", "ps"), [pytest.param(2, 0, marks=pytest.mark.exhaustive), (1, 1)]
)
def test_all_processes_know_each_other(spark, shown, workers, ps):
    def main(word, context):
        print(word, context.job_name, context.task_id, *context.flags)

    run(spark, main, "hello", workers, ps, show=shown).shutdown()
    labels = [str(i) for i in range(workers)] + [f"ps {i}" for i in range(ps)]
    lines = [shown.of(label)[0] for label in labels]
    assert [line.split()[:3] for line in lines] == [
        ["hello", *(["ps", label[3:]] if "ps" in label else ["worker", label])] for label in labels
    ]
    (hosts,) = {re.search(r"--worker_hosts=(\S+)", line)[1] for line in lines}
    assert len(set(hosts.split(","))) == workers
    assert all("--tls_key=" in line and "insecure" not in line for line in lines)


def test_workers_get_all_rows_in_each_epoch_and_may_end_early(spark, shown, frame):
    def main(size, context):
        for batch in context.feed.batches(size):
            print(context.num_rows, *batch.column("n").to_pylist())
            if size == 1:
                return

    cluster = run(spark, main, 4, 2, 0, InputMode.SPARK, show=shown)
    cluster.train(frame, epochs=2)
    cluster.shutdown()
    lines = [line.split() for line in shown.of("0") + shown.of("1")]
    assert {total for total, *_ in lines} == {"21"}
    assert sorted(int(n) for _, *row in lines for n in row) == sorted([*range(21)] * 2)
    assert {len(row) for _, *row in lines} <= {4, 3, 2}
    del shown[:]
    cluster = run(spark, main, 1, 1, 0, InputMode.SPARK, show=shown)
    cluster.train(frame.rdd)
    assert len(shown) == 1


def inferred(spark, frame, results, schema):
    """What an inference gives of a function that returns the results of a batch."""

    def main(_, context):
        for batch in context.feed.batches(4):
            context.feed.give(results(batch))

    return run(spark, main, input_mode=InputMode.SPARK).inference(frame, schema).collect()


def test_an_inference_gives_each_row_its_result_in_columns_of_the_schema(spark, frame):
    def results(batch):
        numbers = batch.column("n").to_pylist()
        return {"half": [n / 2 for n in numbers], "twice": [2 * n for n in numbers]}

    found = inferred(spark, frame, results, "twice int, half float")
    assert sorted((row.twice, row.half) for row in found) == [(2 * n, n / 2) for n in range(21)]


@pytest.mark.exhaustive
def test_law_10_wrong_results_of_an_inference_are_named(spark, frame):
    def lost(batch):
        return {"n": batch.column("n").to_pylist()[1:]}

    with pytest.raises(Exception, match=r"rows gave .* results; each needs one"):
        inferred(spark, frame, lost, "n long")
    with pytest.raises(Exception, match=r"status 1: ValueError: the results lack m double"):
        inferred(spark, frame, lost, "n long, m double")
    with pytest.raises(ValueError, match=r"schema 'n lang': \[UNSUPPORTED_DATATYPE\]"):
        inferred(spark, frame, lost, "n lang")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("workers", "ps"), [(3, 0), (2, 1)])
def test_too_few_cores_end_the_cluster_with_one_error(spark, shown, workers, ps):
    """There are two cores."""

    def main(_, context):
        print("started")

    while num_cores(spark.sparkContext) < 2:  # the second executor registers
        pass
    with pytest.raises(ClusterError) as e:
        run(spark, main, None, workers, ps, start_secs=8, show=shown).shutdown()
    assert re.fullmatch(
        r"only [012] of 3 processes run after 8 s: they need 3 free cores of executors at once, "
        "and there are 2",
        str(e.value),
    )
    assert shown == []
    run(spark, main, None, 2, 0, show=shown).shutdown()
    assert sorted(shown) == ["[0] started", "[1] started"]  # none of the first cluster


@pytest.mark.exhaustive
@pytest.mark.parametrize(("workers", "ps"), [(2, 0), (1, 1)])
def test_a_process_that_fails_once_is_started_again(spark, shown, tmp_path, workers, ps):
    def main(folder, context):
        mark = folder / "failed"
        print("started", context.job_name)
        if context.job_name == "worker" and context.task_id == 0 and not mark.exists():
            mark.touch()
            raise OSError("once")

    run(spark, main, tmp_path, workers, ps, show=shown).shutdown()
    assert shown.of("0").count("started worker") == 2
    others = shown.of("ps 0") if ps else shown.of("1")
    assert len(others) in (1, 2)  # a barrier stage starts anew as a whole


def test_a_process_that_always_fails_ends_the_cluster_with_its_reason(spark, shown):
    def main(_, context):
        raise OSError("no luck")

    with pytest.raises(ClusterError, match="status 1: OSError: no luck"):
        run(spark, main, None, 1, 0, show=shown).shutdown()


@pytest.mark.exhaustive
def test_a_request_to_stop_reaches_the_processes(spark, shown):
    def main(_, context):
        import signal
        import sys
        import time

        def end(*_):
            print("saved")
            sys.exit(143)

        signal.signal(signal.SIGTERM, end)
        print("ready")
        time.sleep(300)

    cluster = run(spark, main, None, 1, 0, show=shown)
    while not shown:
        pass
    cluster.stop()
    cluster.shutdown()
    assert shown.of("0") == ["ready", "saved"]


def test_wrong_numbers_and_a_stopped_cluster_are_refused_before_anything_starts(spark):
    with pytest.raises(ValueError, match="num_workers=0, num_ps=0; allowed are 1 and 0 or more"):
        run(spark, print, None, 0)
    cluster = run(spark, print, None, 1, 0, InputMode.SPARK)
    with pytest.raises(ValueError, match="epochs=0; allowed are 1 and more"):
        cluster.train(spark.range(3), 0)
    cluster.stop()
    for refused in (cluster.train, lambda frame: cluster.inference(frame, "n long")):
        with pytest.raises(
            ClusterError, match="the cluster was stopped; make another one with run"
        ):
            refused(spark.range(3))
    cluster.shutdown()
