"""The sink: Spark's writer interfaces, for DataFrames and streaming queries.

Names the work, so that it is recognized when it is repeated: a batch write by an id made once on the driver, a
micro-batch of a streaming query by the query's id (which is in the checkpoint) and its batch number, called ``epoch``
in the code. ``_writer`` writes the rows.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkFiles, TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row

from natsproto import Client
from natsproto.errors import ConfigError, LocalProtocolError
from natsproto.spark._client import is_retry, run_on_loop, run_with_rows, worker_folder
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
    """The result of one task: ``rows`` written, ``duplicates`` of them by an earlier attempt."""

    rows: int
    duplicates: int
    removed_headers: Mapping[str, int]
    run: str = ""


def check_append(overwrite: bool) -> None:
    """ConfigError for every mode but append."""
    if overwrite:
        raise ConfigError(
            "mode",
            "overwrite",
            'a stream is only appended to: use .mode("append"), or outputMode "append" (other modes of a streaming '
            "query: foreach_batch_writer); purge the stream yourself to begin anew",
        )


def _write(settings: SinkOptions, task: WriteTask, batches: Iterator[pa.RecordBatch]) -> WriteCommit:
    def produce(client: Client, rows: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[WriteResult]:
        return write_messages(client, settings, task, rows)

    (done,) = run_with_rows(settings.nats, produce, batches, prefetch=2)
    return WriteCommit(done.rows, done.duplicates, done.removed_headers, task.run)


def _report(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [message for message in messages if isinstance(message, WriteCommit)]
    rows, duplicates = sum(one.rows for one in written), sum(one.duplicates for one in written)
    log.info("%s: %d rows, %d of them stored by an earlier attempt", what, rows, duplicates)
    removed: Counter[str] = Counter()
    for one in written:
        removed.update(one.removed_headers)
    warn_of_removed(what, "The option serverHeaders", removed)


def _task(owner: str, epoch: int, run: str, *, may_be_stored: bool, after: int = 0) -> WriteTask:
    """The work of this task of Spark."""
    context, retry = _task_context(), is_retry()
    return WriteTask(
        owner=owner,
        epoch=epoch,
        partition=context.partitionId(),
        run=run,
        folder=worker_folder(),
        may_be_stored=retry or may_be_stored,
        retry=retry,
        after=after,
    )


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise LocalProtocolError("rows are written inside a task of Spark")
    return context


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Spark pickles this one object into every attempt of every task."""

    def __init__(self, settings: SinkOptions) -> None:
        info = run_on_loop(settings.nats, check_target, settings)
        self._settings = settings
        self._run = uuid.uuid4().hex
        self._write_id = settings.write_id or self._run
        self._after = 0 if settings.write_id else info.state.last_seq

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs in a task."""
        may_be_stored = bool(self._settings.write_id)
        task = _task(self._write_id, 0, self._run, may_be_stored=may_be_stored, after=self._after)
        return _write(self._settings, task, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the result; every task has its acknowledgements already."""
        _report(f"write {self._write_id} to stream {self._settings.stream}", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Logs the failure. Stored rows stay: a stream has no rollback."""
        log.warning(
            "write %s to stream %s was given up: some of its rows may be stored. With option writeId=%s the same rows "
            "can be written again without storing any row twice",
            *(self._write_id, self._settings.stream, self._write_id),
        )


class CommittedRuns:
    """The runs of a query that have committed a micro-batch: what comes next is not a repetition.

    Only Spark's driver knows: it tells a sink nothing of the kind, and workers and executors come and go. It makes one
    process to plan a micro-batch and another one to commit it; both see the folder that it has for its files.
    """

    MAX_RUNS = 16

    def __init__(self, settings: SinkOptions) -> None:
        key = hashlib.sha256(repr(settings).encode()).hexdigest()[:32]
        self._folder = Path(SparkFiles.getRootDirectory(), ".natsproto", key)

    def names(self) -> frozenset[str]:
        """All of them, of queries with these options."""
        return frozenset(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else frozenset()

    def add(self, run: str) -> None:
        """Notes a run. One that cannot be noted is looked up again at its next micro-batch."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / run).touch()
            for old in sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)[: -self.MAX_RUNS]:
                old.unlink(missing_ok=True)
        except OSError as exc:
            log.warning("every micro-batch looks for stored rows, because the driver cannot write its files: %s", exc)


class _StreamingWriterBase:
    """The common part of both stream writers. Spark makes one for every micro-batch, and another to commit it, so they
    do not connect: one that is stored must not fail for lack of a server. The tasks check the stream.
    """

    def __init__(self, settings: SinkOptions, columns: Columns) -> None:
        self._settings, self._columns = settings, columns
        self._runs = CommittedRuns(settings)
        self._committed = self._runs.names()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Logs the result; every task has its acknowledgements already."""
        _report(f"micro-batch {batchId} to stream {self._settings.stream}", messages)
        for run in {message.run for message in messages if isinstance(message, WriteCommit)} - {""}:
            self._runs.add(run)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Logs the failure. Stored rows stay, and are not stored again when the micro-batch is repeated."""
        log.warning("micro-batch %d to stream %s was given up", batchId, self._settings.stream)

    def _task(self) -> WriteTask:
        context = _task_context()
        query = context.getLocalProperty("sql.streaming.queryId")
        epoch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not epoch:
            raise LocalProtocolError("this version of Spark does not say which query and micro-batch a task belongs to")
        run = context.getLocalProperty("spark.jobGroup.id") or ""
        return _task(query, int(epoch), run, may_be_stored=run not in self._committed)


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
