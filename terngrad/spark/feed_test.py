"""Rows go through a pipe whole, in order, and no faster than they are read."""

import os
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from terngrad.spark.feed import Feed, to_batch, write_rows
from terngrad.testing.limits import HANG_SECS

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")

SCHEMA = pa.schema({"a": pa.float32(), "b": pa.int32()})
WANTED = {"a": [0.5, 1.5], "b": [1, 2]}
BATCH = pa.RecordBatch.from_pydict({"b": [1, 2], "a": [0.5, 1.5]})  # int64 and double


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
    count = []
    writing = threading.Thread(target=lambda: count.append(write_rows(source, pipe, 2)))
    writing.start()
    next(Feed(rows).batches(1))
    rows.close()
    writing.join(HANG_SECS)
    assert not writing.is_alive()
    assert 1 < count[0] < 100  # it shows that the reader missed some


def test_only_an_inference_takes_results():
    ends = os.pipe()
    os.close(ends[1])
    with os.fdopen(ends[0], "rb") as rows, pytest.raises(ValueError, match="takes results"):
        Feed(rows).give(next(batches(1)))


@pytest.mark.parametrize(
    "given",
    [
        WANTED,
        {"b": np.array([1, 2]), "a": np.array([0.5, 1.5], np.float16)},
        {"b": [np.int64(1), np.int64(2)], "a": [np.float32(0.5), 1.5]},
        {"b": [1.0, 2.0], "a": ["0.5", "1.5"]},
        pd.DataFrame({"b": [1, 2], "a": [0.5, 1.5]}),
        BATCH,
        pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1)]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_columns_go_by_name_and_are_cast(given):
    batch = to_batch(given, SCHEMA)
    assert batch.schema == SCHEMA
    assert batch.to_pydict() == WANTED


def test_tensors_and_arrays_of_vectors_become_lists():
    import tensorflow as tf

    schema = pa.schema({"v": pa.list_(pa.float32()), "n": pa.int64()})
    given = {"v": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "n": tf.constant([1, 2])}
    assert to_batch(given, schema).to_pydict() == {"v": [[1.0, 2.0], [3.0, 4.0]], "n": [1, 2]}


def test_results_of_no_row_and_missing_values_have_the_types_too():
    assert to_batch({"a": [], "b": []}, SCHEMA).schema == SCHEMA
    assert to_batch({"a": [None], "b": [None]}, SCHEMA).to_pydict() == {"a": [None], "b": [None]}


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"b": [1]}, "the results lack a float$"),
        ({"a": [1.0], "c": [1]}, "the results lack b int32 and have, unlike the schema, c int64$"),
        ({**WANTED, "d": ["x", "y"]}, "the results have, unlike the schema, d string$"),
        (
            pa.RecordBatch.from_arrays([pa.array([1])] * 3, names=["a", "b", "b"]),
            "the results have twice b int64$",
        ),
        ({"a": ["x"], "b": [1]}, "column a has string, not float: Failed to parse string: 'x'"),
        ({"a": [1.0], "b": [2.5]}, "column b has double, not int32: Float value 2.5.* truncated"),
        (
            {"a": [1.0], "b": [1 << 40]},
            "column b has int64, not int32: Integer value 1099511627776",
        ),
        ({"a": [1.0], "b": [[1]]}, r"column b has list<item: int64>, not int32: Unsupported cast"),
        ({"a": [1.0], "b": [1, "x"]}, "column b: Could not convert 'x'"),
        ({"a": [1.0], "b": [1, 2]}, "same length"),
    ],
)
def test_law_10_a_wrong_column_is_named_with_its_type(given, wrong):
    with pytest.raises(ValueError, match=wrong):
        to_batch(given, SCHEMA)
