"""What connecting to a Spark master says of masters that do not answer."""

import sys
import types

import pytest

from inception.on_spark import session


class _Builder:
    """Fails as that of Spark does."""

    master = appName = config = lambda self, *_, **__: self  # noqa: N815

    def __init__(self, error):
        self._error = error

    def getOrCreate(self):  # noqa: N802
        raise RuntimeError(self._error)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("Cannot call methods on a stopped SparkContext.\nIt was", "no Spark master answers there"),
        ("no such queue", "no such queue"),
    ],
)
def test_law_10_a_master_that_does_not_answer_is_reported(monkeypatch, error, message):
    module = types.SimpleNamespace(SparkSession=types.SimpleNamespace(builder=_Builder(error)))
    monkeypatch.setitem(sys.modules, "pyspark.sql", module)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with pytest.raises(ValueError, match=rf"^flag --spark=spark://127.0.0.1:9: {message}[^\n]*$"):
        session.open_session("spark://127.0.0.1:9", "name")
