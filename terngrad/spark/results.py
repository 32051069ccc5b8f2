"""Results of an inference: columns by name, with the types that the schema wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

Results = pa.RecordBatch | pa.Table | Mapping[str, Any]


def to_batch(results: Results, schema: pa.Schema) -> pa.RecordBatch:
    """Returns results in the order of the schema's columns, cast to its types.

    Args:
      results: an Arrow batch or table, or the values of each column by its name: a list, an array
        or a tensor.
      schema: names and types of the columns.

    Raises:
      ValueError: a column is missing, is not in the schema, or has values that its type does not
        hold.
    """
    if isinstance(results, pa.RecordBatch | pa.Table):
        columns = list(zip(results.schema.names, results.columns, strict=True))
    else:
        columns = [(name, _array(name, values)) for name, values in results.items()]
    _check_names([(name, array.type) for name, array in columns], schema)
    found = dict(columns)
    return pa.RecordBatch.from_arrays(
        [_cast(found[field.name], field) for field in schema], schema=schema
    )


def _array(name: str, values: Any) -> pa.Array:
    if hasattr(values, "__array__"):
        values = np.asarray(values)
        values = values if values.ndim < 2 else values.tolist()
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError) as error:
        raise ValueError(f"column {name}: {error}") from None


def _check_names(columns: list[tuple[str, pa.DataType]], schema: pa.Schema) -> None:
    names = [name for name, _ in columns]
    problems = {
        "lack": [(field.name, field.type) for field in schema if field.name not in names],
        "have twice": [(name, kind) for name, kind in columns if names.count(name) > 1],
        "have, unlike the schema,": [
            (name, kind) for name, kind in columns if name not in schema.names
        ],
    }
    if found := [f"{verb} {_listed(wrong)}" for verb, wrong in problems.items() if wrong]:
        raise ValueError(f"the results {' and '.join(found)}")


def _cast(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    try:
        cast = array.cast(field.type)
    except pa.ArrowException as error:
        cause = str(error).partition("\n")[0]
        wrong = f"column {field.name} has {array.type}, not {field.type}: {cause}"
        raise ValueError(wrong) from None
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _listed(columns: Iterable[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in dict(columns).items())
