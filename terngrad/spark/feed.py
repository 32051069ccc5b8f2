"""Sends the rows of a DataFrame through a pipe, as one Arrow stream for each epoch."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

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


class Feed:
    """The rows that Spark hands to a process."""

    def __init__(
        self, rows: IO[bytes], results: IO[bytes] | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Reads rows from a buffered pipe; writes results of a schema, if any, to another."""
        self._rows = rows
        self._results = results
        self._schema = schema
        self._writer: pa.RecordBatchStreamWriter | None = None

    def batches(self, size: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows of all epochs, `size` at a time; the last batch of an epoch may be less.

        Spark waits while nobody asks for the next batch.
        """
        while self._rows.peek(1):
            with pa.ipc.open_stream(self._rows) as epoch:
                yield from _cut(epoch, size)

    def give(self, results: Results) -> None:
        """Returns results of `Cluster.inference`, one for each row, in the order of the rows.

            feed.give({"label": labels, "probability": probabilities})

        Columns are found by their names, and cast to the types of the schema.

        Args:
          results: the values of each column, in a list or an array, or an Arrow batch or table.

        Raises:
          ValueError: a column is missing, is not in the schema or has values of another type, or
            nobody asked for results.
        """
        if self._results is None:
            raise ValueError("only Cluster.inference takes results")
        batch = to_batch(results, self._schema)
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._results, self._schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Ends the results."""
        if self._writer:
            self._writer.close()
        if self._results:
            self._results.close()


def write_rows(batches: Iterable[pa.RecordBatch], pipe: IO[bytes], epochs: int) -> int:
    """Writes all rows once for each epoch; waits while the pipe is full.

    From the second epoch on they come from a file on this machine, since Spark hands out the rows
    of a task only once. A reader that has seen enough may close the pipe. An error of `batches`
    leaves it open, since its end would mean that there are no more rows.

    Returns:
      The number of rows of an epoch, up to the batch at which the reader closed the pipe.
    """
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            yield batch

    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile()) if epochs > 1 else None
        with contextlib.suppress(BrokenPipeError):
            _write_epoch(counted(), pipe, copy)
            for _ in range(epochs - 1):
                copy.seek(0)
                shutil.copyfileobj(copy, pipe)
            pipe.flush()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return rows


def _write_epoch(
    batches: Iterable[pa.RecordBatch], pipe: IO[bytes], copy: IO[bytes] | None
) -> None:
    writers: list[pa.RecordBatchStreamWriter] = []
    for batch in batches:
        if not writers:
            # Stops reading at the pipe's error, which the caller takes for the end.
            writers = [pa.ipc.new_stream(file, batch.schema) for file in (copy, pipe) if file]
        for writer in writers:
            writer.write_batch(batch)
    for writer in writers:
        writer.close()


def _cut(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches of `size`, and the rest."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        while rows >= size:
            whole = _joined(held)
            yield whole.slice(0, size)
            held, rows = [whole.slice(size)], rows - size
    if rows:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(batches) if len(batches) > 1 else batches[0]
