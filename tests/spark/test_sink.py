"""The writers as Spark calls them, on a real server and without Spark: a task, its attempts, and the end of a write."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.types import BinaryType, StructField, StructType

from natsproto import sync
from natsproto.errors import ConfigError, LocalProtocolError, StreamNotFound
from natsproto.spark import _checkpoint as checkpoint
from natsproto.spark._sink import BatchWriter, StreamingWriter, WriteCommit
from natsproto.spark._source import NatsDataSource
from natsproto.sync._jetstream import JetStream
from natsproto.testing import Server

ROWS = StructType([StructField("data", BinaryType())])


@pytest.fixture
def js(nc: sync.Client) -> Iterator[JetStream]:
    js = nc.jetstream()
    js.create_stream(name="OUT", subjects=["out.>", "$CURSOR.OUT.>"], storage="memory", allow_atomic=True)
    yield js
    js.delete_stream("OUT")


@pytest.fixture(autouse=True)
def no_task() -> Iterator[None]:
    """Spark's context of a task is one for each process."""
    yield
    TaskContext._taskContext = None


def begin_task(partition: int = 0, attempt: int = 0, properties: Mapping[str, str] | None = None) -> None:
    """What a worker of Spark does before it calls a writer."""
    context: Any = TaskContext._getOrCreate()
    context._partitionId, context._attemptNumber = partition, attempt
    context._localProperties = dict(properties or {})


def sink_source(server: Server, **options: str) -> NatsDataSource:
    given = {"servers": server.url, "stream": "OUT", "subject": "out.rows", "stableOrder": "true"}
    return NatsDataSource({**given, **options})


def given_to(writer: Any, first: int, last: int) -> Iterator[object]:
    """Rows as Spark gives them to this writer: before 4.1 a stream writer gets no Arrow batches."""
    data = [b"%d" % number for number in range(first, last)]
    is_by_row = isinstance(writer, StreamingWriter) and not hasattr(datasource, "DataSourceStreamArrowWriter")
    yield from (
        [Row(data=one) for one in data] if is_by_row else [pa.RecordBatch.from_arrays([pa.array(data)], names=["data"])]
    )


def write_attempt(writer: Any, first: int, last: int) -> WriteCommit:
    """One attempt, with the copy of the writer that its worker gets."""
    commit = pickle.loads(pickle.dumps(writer)).write(given_to(writer, first, last))
    assert isinstance(commit, WriteCommit)
    return pickle.loads(pickle.dumps(commit))  # type: ignore[no-any-return]  # a WriteCommit


def written_payloads(js: JetStream) -> list[bytes]:
    stream = js.stream("OUT")
    return [message.data for message in stream.get_batch(subject="out.rows")]


def batch_writer(server: Server, **options: str) -> BatchWriter:
    writer = sink_source(server, **options).writer(ROWS, False)
    assert isinstance(writer, BatchWriter)
    return writer


def stream_writer(server: Server, **options: str) -> Any:
    writer = sink_source(server, **options).streamWriter(ROWS, False)
    assert isinstance(writer, StreamingWriter)
    return writer


def test_write_of_two_tasks_is_stored_once(server: Server, js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    writer = batch_writer(server)
    begin_task(partition=0)
    first = write_attempt(writer, 0, 5)
    begin_task(partition=1)
    assert (other := write_attempt(writer, 5, 8)).rows == 3
    assert (other.duplicates, other.removed_headers) == (0, {})
    begin_task(partition=1, attempt=1)
    second = write_attempt(writer, 5, 8)  # Spark did not hear of the first attempt
    assert (first.rows, second.duplicates) == (5, 3)
    assert written_payloads(js) == [b"%d" % number for number in range(8)]
    with caplog.at_level(logging.INFO, "natsproto.spark"):
        writer.commit([first, second, None])
    assert caplog.messages[-1].endswith("to stream OUT: 8 rows, 3 of them stored by an earlier attempt")


def test_write_again_needs_the_write_id(server: Server, js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    named = {"delivery": "cursor", "writeId": "day-1"}
    for duplicates in (0, 5):
        begin_task()
        assert write_attempt(batch_writer(server, **named), 0, 5).duplicates == duplicates
    begin_task()
    assert write_attempt(batch_writer(server), 0, 5).duplicates == 0  # a write of its own
    assert len(written_payloads(js)) == 10
    batch_writer(server, **named).abort([])
    assert caplog.messages[-1].endswith("the same write, repeated with its writeId, stores the others")
    batch_writer(server).abort([])
    assert caplog.messages[-1].endswith("a repeated write stores them again")


def test_write_is_refused_before_it_begins(server: Server, js: JetStream) -> None:
    with pytest.raises(ConfigError, match="only appended to"):
        sink_source(server).writer(ROWS, True)
    with pytest.raises(StreamNotFound):
        batch_writer(server, stream="NONE")
    with pytest.raises(LocalProtocolError, match="inside a task"):
        batch_writer(server).write(given_to(None, 0, 1))


def begin_epoch(folder: Path, epoch: int) -> None:
    """What the checkpoint has when Spark plans a micro-batch."""
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(epoch)).touch()
    begin_task(properties={"sql.streaming.queryId": "query", "streaming.sql.batchId": str(epoch)})


@pytest.mark.parametrize("delivery", ["ids", "cursor"])
def test_epoch_that_is_repeated_is_stored_once(
    delivery: str, server: Server, js: JetStream, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    options = {"delivery": delivery, "checkpointlocation": str(tmp_path)}
    for duplicates in (0, 5):  # the second run begins with the last epoch of the first
        begin_epoch(tmp_path, 7)
        done = write_attempt(stream_writer(server, **options), 0, 5)
        assert (done.rows, done.duplicates) == (5, duplicates)
    begin_epoch(tmp_path, 8)
    last = write_attempt(stream_writer(server, **options), 5, 7)
    assert written_payloads(js) == [b"%d" % number for number in range(7)]
    writer = stream_writer(server, **options)
    with caplog.at_level(logging.INFO, "natsproto.spark"):
        writer.commit([done, last], 8)
    assert caplog.messages[-1] == "micro-batch 8 to stream OUT: 7 rows, 5 of them stored by an earlier attempt"
    writer.abort([], 8)
    assert caplog.messages[-1] == "micro-batch 8 to stream OUT was given up"


def test_repeated_epoch_behind_the_window_is_refused(server: Server, js: JetStream, tmp_path: Path) -> None:
    """By the time of the file that its first plan has left in the checkpoint, however it ended."""
    options = {"checkpointlocation": f"file://{tmp_path}"}
    begin_epoch(tmp_path, 0)
    write_attempt(stream_writer(server, **options), 0, 5)
    (mark,) = (tmp_path / "natsproto").iterdir()
    os.utime(mark, (time.time() - 130, time.time() - 130))
    with pytest.raises(ConfigError, match=r"is over for partition 0, which is repeated 13\d s after"):
        write_attempt(stream_writer(server, **options), 0, 9)
    assert len(written_payloads(js)) == 5
    begin_epoch(tmp_path, 1)
    assert write_attempt(stream_writer(server, **options), 0, 9).duplicates == 0
    assert [path.name[-2:] for path in (tmp_path / "natsproto").iterdir()] == ["-1"]


def test_micro_batch_without_a_checkpoint_is_refused(server: Server, js: JetStream, tmp_path: Path) -> None:
    begin_epoch(tmp_path, 3)
    (tmp_path / "file").touch()
    for location in ("", str(tmp_path / "none"), str(tmp_path / "file"), "nosuch://place/x"):
        with pytest.raises(ConfigError, match=r"checkpointLocation.*use delivery=cursor or duplicates=allow"):
            write_attempt(stream_writer(server, checkpointlocation=location), 0, 5)
    (tmp_path / "offsets" / "4").touch()
    with pytest.raises(ConfigError, match="checkpointLocation"):  # it is of another micro-batch
        write_attempt(stream_writer(server, checkpointlocation=str(tmp_path)), 0, 5)
    assert written_payloads(js) == []
    for options in ({"duplicates": "allow"}, {"delivery": "cursor"}, {"delivery": "none"}):
        write_attempt(stream_writer(server, **options), 0, 5)


def test_checkpoint_of_another_file_system(server: Server, js: JetStream, tmp_path: Path) -> None:
    """By pyarrow, as for HDFS and the stores of clouds."""
    files = checkpoint._RemoteFiles(tmp_path.as_uri())
    assert checkpoint._plan(files, "sink") is None
    for epoch in (4, 5):
        begin_epoch(tmp_path, epoch)
        planned = checkpoint._plan(files, "sink")
        assert planned is not None
        assert (planned.epoch, planned.is_repeated, planned.since == pytest.approx(time.time(), abs=10)) == (
            epoch,
            False,
            True,
        )
        again = checkpoint._plan(files, "sink")
        assert again is not None
        assert (again.epoch, again.is_repeated, again.since == pytest.approx(planned.since, abs=10)) == (
            epoch,
            True,
            True,
        )
    assert len([*(tmp_path / "natsproto").iterdir()]) == 1


@pytest.mark.parametrize("known", [{}, {"sql.streaming.queryId": "q"}, {"streaming.sql.batchId": "1"}])
def test_epoch_without_its_query_is_refused(known: Mapping[str, str], server: Server, js: JetStream) -> None:
    begin_task(properties=known)
    with pytest.raises(LocalProtocolError, match="which query and micro-batch"):
        write_attempt(stream_writer(server), 0, 1)
    assert written_payloads(js) == []


def test_epoch_of_rows_for_an_older_spark(server: Server, js: JetStream) -> None:
    """Spark 4.0 hands rows to a streaming sink, not Arrow batches; every sink converts them alike."""
    from natsproto.spark._arrow import batches_from_rows

    rows = [Row(data=b"1"), Row(data=None), Row(data=b"3")]
    made = list(batches_from_rows(iter(rows), [("data", "binary")], 2))
    assert [batch.num_rows for batch in made] == [2, 1]
    assert [value for batch in made for value in batch.column(0).to_pylist()] == [b"1", None, b"3"]


def test_commit_warns_of_removed_headers(server: Server, js: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    headers = pa.array([[("Nats-Rollup", "all"), ("K", "v")]], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array([b"1"]), headers], names=["data", "headers"])
    begin_task()
    writer = batch_writer(server)
    done = writer.write(iter([batch]))
    writer.commit([done])
    assert "removed server-control headers: Nats-Rollup (1)" in caplog.messages[-1]
    headers_stored = js.stream("OUT").get_message(1).headers
    assert ("Nats-Rollup" in headers_stored, headers_stored["K"]) == (False, "v")
