"""Deals the rows of a DataFrame out to workers, as many to each."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BITS = 33  # of monotonically_increasing_id; those above are the index of the partition


def deal(frame: DataFrame, workers: int) -> tuple[DataFrame, int]:
    """Returns the frame with a partition for each worker, and the number of its rows.

    The partitions differ by one row at most. `DataFrame.repartition` promises less: it deals out
    each old partition from a worker chosen at random, so that the rows of n old partitions may
    differ by n. Here each begins with the worker after the one that got the last row of the
    partition before.

    Spark computes the frame twice. One that gives other partitions the second time is dealt out no
    more evenly than by `repartition`: Spark combines small partitions of sorted, grouped and joined
    frames, and they are smaller while they are only counted. `DataFrame.persist` prevents it.

    Raises:
      ValueError: this Spark is too old.
    """
    import pyspark
    from pyspark.sql import functions

    if not hasattr(frame, "repartitionById"):
        raise ValueError(f"Spark is {pyspark.__version__}; feeding rows needs 4.1 or later")

    part = functions.spark_partition_id().alias("part")
    rows = dict(frame.groupBy(part).count().collect())
    sizes = (rows.get(index, 0) for index in range(max(rows, default=0) + 1))
    *firsts, total = itertools.accumulate(sizes, initial=0)
    row = functions.monotonically_increasing_id()
    starts = functions.array(*(functions.lit(first % workers) for first in firsts))
    index = functions.shiftright(row, _ROW_BITS).cast("int")
    start = functions.coalesce(functions.get(starts, index), index)  # of one that was not counted
    turn = start + row.bitwiseAND((1 << _ROW_BITS) - 1)
    worker = "_" * (1 + max(map(len, frame.columns), default=0))  # the name of no column
    numbered = frame.withColumn(worker, functions.pmod(turn, functions.lit(workers)).cast("int"))
    return numbered.repartitionById(workers, worker).drop(worker), total
