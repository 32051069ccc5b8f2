"""A task of Spark ends with the reason if what it runs, or what feeds that, fails."""

import threading
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
