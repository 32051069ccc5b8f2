"""Rows of a DataFrame on their way through a pipe, as Arrow streams: one for each epoch."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from terngrad.spark.results import Results, to_batch


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
    of a task only once. A reader that has seen enough may close the pipe.

    Returns:
      The number of rows of an epoch.
    """
    rows = 0
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile()) if epochs > 1 else None
        with contextlib.suppress(BrokenPipeError):
            rows = _write_epoch(batches, pipe, copy)
            for _ in range(epochs - 1):
                copy.seek(0)
                shutil.copyfileobj(copy, pipe)
            pipe.flush()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return rows


def _write_epoch(batches: Iterable[pa.RecordBatch], pipe: IO[bytes], copy: IO[bytes] | None) -> int:
    writers: list[pa.RecordBatchStreamWriter] = []
    rows = 0
    for batch in batches:
        if not writers:
            # Stops reading at the pipe's error, which the caller takes for the end.
            writers = [pa.ipc.new_stream(file, batch.schema) for file in (copy, pipe) if file]
        for writer in writers:
            writer.write_batch(batch)
        rows += batch.num_rows
    for writer in writers:
        writer.close()
    return rows


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
