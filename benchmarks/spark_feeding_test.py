"""The benchmark runs, and its figures are consistent."""

import pytest

from terngrad.testing import spark


@pytest.mark.slow
def test_rows_and_records_are_timed_in_turns(run, monkeypatch):
    spark.skip_without_spark()
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    found = run("spark_feeding", "--steps=3", "--rounds=1", "--batch_size=8")
    (records,), (rows,) = found["images_per_s"].values()
    assert found["figures"]["rows to records"] == pytest.approx(rows / records)
    assert records > 0
