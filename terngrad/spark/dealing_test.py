"""How the rows of a DataFrame are dealt out to workers."""

from types import SimpleNamespace

import pytest

from terngrad.spark.dealing import deal

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("rows", "partitions", "workers"),
    [(12, 12, 4), (3, 2, 4), (0, 1, 2)],
)
def test_workers_get_all_rows_in_numbers_that_differ_by_one_at_most(
    spark, rows, partitions, workers
):
    frame = spark.range(0, rows, 1, partitions).withColumnRenamed("id", "n")
    dealt, count = deal(frame, workers)
    parts = [[row.n for row in part] for part in dealt.rdd.glom().collect()]
    assert count == rows
    assert dealt.columns == ["n"]
    assert sorted(n for part in parts for n in part) == list(range(rows))
    assert sorted(map(len, parts)) == sorted(
        rows // workers + (i < rows % workers) for i in range(workers)
    )


def test_old_partitions_of_unequal_sizes_and_none_are_dealt_out_evenly(spark):
    groups = spark.range(0, 90, 1, 2).selectExpr("id as n", "id % 5 as key")
    frame = groups.repartition(7, "key")  # some partitions are empty
    parts = deal(frame, 4)[0].rdd.glom().collect()
    assert sorted(map(len, parts)) == [22, 22, 23, 23]


def test_a_frame_that_spark_partitions_anew_reaches_all_workers(spark):
    session = spark.newSession()
    for name, size in (
        ("advisoryPartitionSizeInBytes", "4k"),
        ("coalescePartitions.minPartitionSize", "1k"),
    ):
        session.conf.set(f"spark.sql.adaptive.{name}", size)
    session.conf.set("spark.sql.adaptive.coalescePartitions.parallelismFirst", "false")
    # Each row takes 6 kB, and next to nothing where only rows are counted.
    values = (
        "id * 7 % 64 as n",
        "array_join(transform(sequence(1, 100), i -> sha2(string(id * i), 256)), '') as x",
    )
    frame = session.range(0, 64, 1, 2).selectExpr(*values).groupBy("n").agg({"x": "first"})
    parts = [len(part) for part in deal(frame, 4)[0].rdd.glom().collect()]
    assert sum(parts) == 64
    assert max(parts) < 32


def test_law_10_a_spark_that_is_too_old_is_named():
    pytest.importorskip("pyspark")
    with pytest.raises(ValueError, match=r"Spark is .*; feeding rows needs 4\.1 or later"):
        deal(SimpleNamespace(columns=["n"]), 2)
