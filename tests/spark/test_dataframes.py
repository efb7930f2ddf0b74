"""Whole DataFrames without Spark: what runs in a task of ``mapInArrow``, and what Spark is asked for on the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from natsproto import sync
from natsproto.errors import ConfigError
from natsproto.spark import SparkNats, WriteSummary, arrow_partition, foreach_batch_writer, register, stream_dataframe
from natsproto.spark import _dataframes as dataframes
from natsproto.spark._schema import ROW_SCHEMA_WITHOUT_HEADERS
from natsproto.sync._jetstream import JetStream
from tests.spark.streams import StreamFixture

HEADERS = pa.map_(pa.string(), pa.string())


class Frame:
    """A DataFrame whose rows are batches and which computes as it is asked, in this process."""

    def __init__(self, session: Any, *batches: pa.RecordBatch) -> None:
        self.sparkSession, self._batches = session, batches

    def mapInArrow(
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> Frame:
        return Frame(self.sparkSession, *function(iter(self._batches)))

    def collect(self) -> list[Row]:
        return [Row(**row) for batch in self._batches for row in batch.to_pylist()]


class Session:
    """A session that makes Frames; ``query`` is the id of the streaming query of this thread."""

    version = "3.5.1"

    def __init__(self, query: str | None = None) -> None:
        self.schemas: list[str] = []
        self.sparkContext = SimpleNamespace(getLocalProperty=lambda name: query, environment={})

    def createDataFrame(self, rows: list[Any], schema: str) -> Frame:
        self.schemas.append(schema)
        return Frame(self)

    def range(self, start: int, end: int, step: int, numPartitions: int) -> Frame:
        assert numPartitions == end - start
        return Frame(self, *(batch(id=[number]) for number in range(start, end, step)))


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def rows_of(*batches: pa.RecordBatch) -> list[Row]:
    return list(dataframes._rows_of(batches))


@pytest.fixture
def out(nc: sync.Client) -> Iterator[JetStream]:
    js = nc.jetstream()
    js.create_stream(name="FRAMES", subjects=["frames"], storage="memory")
    yield js
    js.delete_stream("FRAMES")


def framed_payloads(js: JetStream) -> list[bytes]:
    return [message.data for message in js.stream("FRAMES").get_batch(subject="frames")]


# ---------------------------------------------------------------- a stream as a DataFrame


@pytest.mark.parametrize("headers", [True, False])
def test_dataframe_of_a_stream_in_partitions(nats: SparkNats, headers: bool) -> None:
    stream = StreamFixture(nats)
    stream.publish(10, "a", "b", data=b"x", headers={"K": "v"})
    session: Any = Session()
    frame = stream_dataframe(session, nats, stream.name, num_partitions=3, headers=headers, batch_rows=2)
    found = frame.collect()
    assert sorted(row.seq for row in found) == list(range(1, 11))
    assert {row.subject for row in found} == {f"{stream.name}.a", f"{stream.name}.b"}
    assert ("headers" in found[0]) is headers
    narrowed = stream_dataframe(session, nats, stream.name, subjects=[f"{stream.name}.a"]).collect()
    assert len(narrowed) == 5


def test_dataframe_of_an_empty_stream(nats: SparkNats) -> None:
    session: Any = Session()
    assert stream_dataframe(session, nats, StreamFixture(nats).name, headers=False).collect() == []
    assert session.schemas == [ROW_SCHEMA_WITHOUT_HEADERS]
    with pytest.raises(ConfigError, match="method"):
        stream_dataframe(session, nats, "R", method="guess")  # type: ignore[arg-type]  # the mistake itself


# ---------------------------------------------------------------- partition functions on Arrow


def test_arrow_partition_takes_every_kind_of_result() -> None:
    given = batch(key=["a", "b"], number=[1, 2])
    results: list[tuple[Callable[[Row], Any], pa.Schema, list[dict[str, Any]]]] = [
        (lambda row: row, given.schema, given.to_pylist()),
        (lambda row: (row.key, row.number), given.schema, given.to_pylist()),
        (lambda row: row.asDict(), given.schema, given.to_pylist()),
        (
            lambda row: (row, row.number * 10),
            given.schema.append(pa.field("tenfold", pa.int64())),
            [{"key": "a", "number": 1, "tenfold": 10}, {"key": "b", "number": 2, "tenfold": 20}],
        ),
        (
            lambda row: WriteSummary(partition=0, write_id="w", rows=row.number, duplicates=0),
            pa.schema([("rows", pa.int64())]),
            [{"rows": 1}, {"rows": 2}],
        ),
    ]
    for function, schema, expected in results:
        made = list(arrow_partition(partial(map, function), schema)(iter([given])))
        assert [row for part in made for row in part.to_pylist()] == expected
        assert all(part.schema == schema for part in made)


def test_arrow_partition_maps_are_dicts_both_ways() -> None:
    headers = pa.array([[("K", "v")], None], HEADERS)
    given = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), headers], names=["data", "headers"])
    assert [row.headers for row in rows_of(given)] == [{"K": "v"}, None]
    [made] = arrow_partition(iter, given.schema)(iter([given]))
    assert made.equals(given)


def test_arrow_partition_cuts_its_results_into_batches() -> None:
    schema = pa.schema([("n", pa.int64())])
    number = dataframes.ROWS_PER_ARROW_BATCH + 1
    made = list(arrow_partition(lambda rows: ((n,) for n in range(number)), schema)(iter([])))
    assert [part.num_rows for part in made] == [dataframes.ROWS_PER_ARROW_BATCH, 1]
    assert list(arrow_partition(lambda rows: iter(()), schema)(iter([]))) == []
    with pytest.raises(pa.ArrowInvalid):
        list(arrow_partition(lambda rows: iter([("no number",)]), schema)(iter([])))
    with pytest.raises(ValueError, match="zip"):
        list(arrow_partition(lambda rows: iter([(1, 2, 3)]), schema)(iter([])))


# ---------------------------------------------------------------- the micro-batches of a query


@pytest.mark.parametrize("write_id", ["", "orders"])
def test_foreach_batch_repeated_is_stored_once(
    nats: SparkNats, out: JetStream, write_id: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").touch()
    caplog.set_level("INFO", "natsproto.spark")
    frame: Any = Frame(Session("a query"), batch(data=[b"1", b"2"]), batch(data=[b"3"]))
    for duplicates in (0, 3):  # the query is started again and repeats its last batch
        write = foreach_batch_writer(
            nats, write_id=write_id, subject="frames", stable_order=True, checkpoint=str(tmp_path)
        )
        write(frame, 7)
        name = write_id or "a query"
        counts = f"3 rows published, {duplicates} of them were stored before"
        assert caplog.messages[-1] == f"micro-batch 7 of {name}: {counts}"
    with pytest.raises(ConfigError, match="checkpoint"):  # Spark has not planned it
        write(frame, 8)
    (tmp_path / "offsets" / "8").touch()
    write(frame, 8)
    assert framed_payloads(out) == [b"1", b"2", b"3"] * 2


def test_foreach_batch_needs_a_query_or_an_id(nats: SparkNats) -> None:
    connect: Any = Frame(SimpleNamespace())  # Spark Connect has no context
    thread: Any = Frame(Session(None))
    for frame in (connect, thread):
        with pytest.raises(ConfigError, match="write_id"):
            foreach_batch_writer(nats, subject="frames", stable_order=True, duplicates="allow")(frame, 1)
    with pytest.raises(ConfigError, match="timeout"):
        foreach_batch_writer(nats, subject="frames", stable_order=True, duplicates="allow", timeout=0)


# ---------------------------------------------------------------- registering the data source


def test_register_needs_spark_4() -> None:
    session: Any = Session()
    with pytest.raises(ConfigError, match=r"need Spark 4\.0"):
        register(session)


def test_register_shares_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that came with --py-files is found by the process that plans queries, once."""
    registered: list[type] = []
    session: Any = Session()
    session.dataSource = SimpleNamespace(register=registered.append)
    monkeypatch.setattr(Session, "getActiveSession", staticmethod(lambda: None), raising=False)
    monkeypatch.setattr(
        dataframes, "__spec__", SimpleNamespace(loader=SimpleNamespace(archive="/files/natsproto-spark.zip"))
    )
    session.sparkContext.environment["PYTHONPATH"] = "/other"
    for _ in range(2):
        register(session)
    assert session.sparkContext.environment["PYTHONPATH"].split(os.pathsep) == ["/files/natsproto-spark.zip", "/other"]
    assert [one.__name__ for one in registered] == ["NatsDataSource"] * 2
    assert session.schemas == ["x int"] * 2
    del session.sparkContext  # Spark Connect
    register(session)
