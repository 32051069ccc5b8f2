"""Results of an inference go by the names of their columns and have the types of the schema."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from terngrad.spark.results import to_batch

SCHEMA = pa.schema({"a": pa.float32(), "b": pa.int32()})
WANTED = {"a": [0.5, 1.5], "b": [1, 2]}
BATCH = pa.RecordBatch.from_pydict({"b": [1, 2], "a": [0.5, 1.5]})  # int64 and double


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
