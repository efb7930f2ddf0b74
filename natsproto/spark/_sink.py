"""The sink: Spark's writer interfaces, for DataFrames and streaming queries.

Names the work, so that it is recognized when it is repeated: a batch write by an id made once on the driver, a
micro-batch of a streaming query by the query's id and its batch number, called ``epoch`` in the code; both are in the
checkpoint, and so is when it was planned first. ``_writer`` writes the rows.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row

from natsproto import Client, errors
from natsproto.spark._bad_rows import warn_of_bad_rows
from natsproto.spark._checkpoint import plan, unknown_plan
from natsproto.spark._client import is_retry, run_on_loop, run_with_rows
from natsproto.spark._options import SinkOptions
from natsproto.spark._schema import warn_of_removed
from natsproto.spark._task import WriteResult, WriteTask
from natsproto.spark._writer import check_target, write_messages

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("natsproto.spark")

Columns = Sequence[tuple[str, str]]
ROWS_PER_BATCH = 4096


@dataclass
class WriteCommit(WriterCommitMessage):
    """The result of one task: ``rows`` written, ``duplicates`` of them by an earlier attempt, and ``bad_rows``."""

    rows: int
    duplicates: int
    removed_headers: Mapping[str, int]
    bad_rows: Mapping[str, int]


def check_append(overwrite: bool) -> None:
    """ConfigError for every mode but append."""
    if overwrite:
        raise errors.ConfigError(
            "mode",
            "overwrite",
            'a stream is only appended to: use .mode("append"), or outputMode "append" (other modes of a streaming '
            "query: foreach_batch_writer); purge the stream yourself to begin anew",
        )


def _write(settings: SinkOptions, task: WriteTask, batches: Iterator[pa.RecordBatch]) -> WriteCommit:
    def produce(client: Client, rows: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[WriteResult]:
        return write_messages(client, settings, task, rows)

    (done,) = run_with_rows(settings.nats, produce, batches, prefetch=2)
    return WriteCommit(done.rows, done.duplicates, done.removed_headers, done.bad_rows)


def _report(what: str, settings: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, WriteCommit)]
    rows, duplicates = sum(one.rows for one in written), sum(one.duplicates for one in written)
    log.info("%s: %d rows, %d of them stored by an earlier attempt", what, rows, duplicates)
    removed: Counter[str] = Counter()
    bad_rows: Counter[str] = Counter()
    for one in written:
        removed.update(one.removed_headers)
        bad_rows.update(one.bad_rows)
    warn_of_removed(what, "The option serverHeaders", removed)
    warn_of_bad_rows(what, settings.bad_rows, bad_rows)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise errors.LocalProtocolError("rows are written inside a task of Spark")
    return context


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Spark pickles this one object into every attempt of every task."""

    def __init__(self, settings: SinkOptions) -> None:
        window = run_on_loop(settings.nats, check_target, settings).cached_info.config.duplicate_window
        self._settings = settings
        self._since = time.time()
        self._write_id = settings.write_id or uuid.uuid4().hex
        if settings.delivery == "ids":
            log.info("write to stream %s: once within its duplicate_window of %g s", settings.stream, window)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        partition = _task_context().partitionId()
        task = WriteTask(owner=self._write_id, epoch=-1, partition=partition, is_repeated=is_retry(), since=self._since)
        return _write(self._settings, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the result; every task has its acknowledgements already."""
        _report(f"write to stream {self._settings.stream}", self._settings, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the failure. Stored rows stay: a stream has no rollback."""
        advice = "a repeated write stores them again"
        if self._settings.write_id:
            advice = "the same write, repeated with its writeId, stores the others"
        log.warning(
            "the write to stream %s was given up: some of its rows may be stored; %s", self._settings.stream, advice
        )


class _StreamingWriterBase:
    """The common part of both stream writers. Spark makes one for every micro-batch, and another to commit it, so they
    do not connect: one that is stored must not fail for lack of a server. The tasks check the stream.
    """

    def __init__(self, settings: SinkOptions, columns: Columns) -> None:
        self._settings, self._columns = settings, columns
        self._planned = plan(settings.checkpoint, "sink") if settings.delivery == "ids" else None

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Logs the result; every task has its acknowledgements already."""
        _report(f"micro-batch {batchId} to stream {self._settings.stream}", self._settings, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Logs the failure. Stored rows stay; the repeated micro-batch stores the others."""
        log.warning("micro-batch %d to stream %s was given up", batchId, self._settings.stream)

    def _task(self) -> WriteTask:
        context, settings, planned = _task_context(), self._settings, self._planned
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise errors.LocalProtocolError(
                "this version of Spark does not say which query and micro-batch a task belongs to"
            )
        epoch, repeated = int(batch), is_retry()
        if planned is not None and planned.epoch == epoch:
            repeated, since = repeated or planned.is_repeated, planned.since
        elif settings.delivery == "ids" and (settings.bucket or settings.duplicates == "refuse"):
            raise unknown_plan("option checkpointLocation", settings.checkpoint, "delivery=cursor", "duplicates=allow")
        else:
            since = time.time()
        return WriteTask(owner=query, epoch=epoch, partition=context.partitionId(), is_repeated=repeated, since=since)


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):  # Spark 4.1

    class StreamingWriter(_StreamingWriterBase, datasource.DataSourceStreamArrowWriter):
        """Writes the micro-batches of a streaming query."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Runs in a task."""
            return _write(self._settings, self._task(), iterator)

else:

    class StreamingWriter(_StreamingWriterBase, datasource.DataSourceStreamWriter):
        """Writes the micro-batches of a streaming query, which come as rows."""

        def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
            """Runs in a task."""
            from natsproto.spark._arrow import batches_from_rows

            return _write(self._settings, self._task(), batches_from_rows(iterator, self._columns, ROWS_PER_BATCH))
