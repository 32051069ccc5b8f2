"""Rows go through a pipe whole, in order, and no faster than they are read."""

import os
import threading

import pyarrow as pa
import pytest

from terngrad.spark.feed import Feed, write_rows
from terngrad.testing.limits import HANG_SECS

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")


def batches(*sizes):
    """Batches of consecutive numbers."""
    first, schema = 0, pa.schema({"x": pa.int64()})
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"x": range(first, first + size)}, schema)
        first += size


def fed(sizes, epochs, size):
    """The batches that a feed yields, as lists."""
    ends = os.pipe()
    rows, pipe = os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "wb")
    writing = threading.Thread(target=write_rows, args=(batches(*sizes), pipe, epochs))
    writing.start()
    found = [batch.column("x").to_pylist() for batch in Feed(rows).batches(size)]
    writing.join()
    return found


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (1,) * 7, (2, 0, 5)])
def test_batches_are_cut_anew_and_the_last_rows_are_kept(sizes):
    assert fed(sizes, 1, 3) == [[0, 1, 2], [3, 4, 5], [6]]


def test_each_epoch_has_all_rows_in_their_order():
    assert fed((2, 3), 3, 4) == 3 * [[0, 1, 2, 3], [4]]


def test_a_worker_without_rows_has_no_batch():
    assert fed((), 2, 4) == []


def test_rows_wait_until_they_are_read():
    ends = os.pipe()
    taken = []

    def source():
        for number in range(100):
            taken.append(number)
            yield pa.RecordBatch.from_pydict({"x": [bytes(1 << 16)]})

    rows, pipe = os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "wb")
    writing = threading.Thread(target=write_rows, args=(source(), pipe, 1))
    writing.start()
    found = Feed(rows).batches(1)
    next(found)
    writing.join(0.5)
    assert len(taken) < 10
    assert sum(1 for _ in found) == 99
    writing.join()


def test_a_reader_may_stop_early():
    ends = os.pipe()
    rows, pipe = os.fdopen(ends[0], "rb"), os.fdopen(ends[1], "wb")
    source = (pa.RecordBatch.from_pydict({"x": [bytes(1 << 16)]}) for _ in range(100))
    writing = threading.Thread(target=write_rows, args=(source, pipe, 2))
    writing.start()
    next(Feed(rows).batches(1))
    rows.close()
    writing.join(HANG_SECS)
    assert not writing.is_alive()


def test_only_an_inference_takes_results():
    ends = os.pipe()
    os.close(ends[1])
    with os.fdopen(ends[0], "rb") as rows, pytest.raises(ValueError, match="takes results"):
        Feed(rows).give(next(batches(1)))
