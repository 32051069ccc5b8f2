"""A task of Spark ends with the reason if what it runs, or what feeds that, fails."""

import itertools
import signal
import sys
import threading
import time
import types

import pytest

from terngrad.spark.context import Context
from terngrad.testing.limits import HANG_SECS

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
cloudpickle = pytest.importorskip(
    "pyspark.cloudpickle", reason="pyspark is not installed: pip install '.[spark]'"
)


def test_rows_that_fail_end_the_inference_before_it_takes_them_for_all(tmp_path):
    from terngrad.spark.task import _Process

    def predict(path, context):
        for batch in context.feed.batches(10):
            context.feed.give({"y": batch.column("x")})
        path.touch()

    def rows():
        yield pa.record_batch({"x": range(100)})
        raise OSError("no more rows")

    def consume():
        try:
            list(process.run(rows(), 1))
        except OSError as error:
            errors.append(str(error))

    errors = []
    finished = tmp_path / "finished"
    work = cloudpickle.dumps(predict) + cloudpickle.dumps(finished)
    connection = types.SimpleNamespace(send=print, requests=lambda: iter(()))
    schema = pa.schema({"y": pa.int64()})
    process = _Process(work, Context("inference", 0), connection, schema)
    consuming = threading.Thread(target=consume, daemon=True)
    try:
        consuming.start()
        consuming.join(HANG_SECS)
        assert errors == ["no more rows"]
    finally:
        process.kill()
    assert not finished.exists()


def _stop_by_the_signal(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _stop_like_a_success(*_):
    sys.exit(0)


@pytest.mark.parametrize("num_given", [0, 3])
@pytest.mark.parametrize("stop", [_stop_by_the_signal, _stop_like_a_success])
def test_a_stop_fails_an_inference_whose_results_are_not_complete(stop, num_given):
    from terngrad.spark.task import _Process

    def predict(stop, context):
        signal.signal(signal.SIGTERM, stop)
        for batch in itertools.islice(context.feed.batches(10), num_given):
            context.feed.give({"y": batch.column("x")})
        print("ready")
        time.sleep(HANG_SECS)

    def requests():
        assert is_ready.wait(HANG_SECS)
        yield "stop"

    is_ready = threading.Event()
    work = cloudpickle.dumps(predict) + cloudpickle.dumps(stop)
    connection = types.SimpleNamespace(send=lambda line: is_ready.set(), requests=requests)
    schema = pa.schema({"y": pa.int64()})
    process = _Process(work, Context("inference", 0), connection, schema)
    try:
        with pytest.raises(RuntimeError, match=r"^the cluster was stopped$"):
            list(process.run([pa.record_batch({"x": range(100)})], 1))
    finally:
        process.kill()
