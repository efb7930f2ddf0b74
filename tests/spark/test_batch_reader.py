"""The reader of a batch query as Spark calls it, on a real server and without Spark: its partitions and their rows."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from natsproto import sync
from natsproto.errors import ConfigError, StreamNotFound
from natsproto.spark._schema import ROW_SCHEMA
from natsproto.spark._source import NatsDataSource
from natsproto.sync._jetstream import JetStream
from natsproto.testing import Server

NAMES = [column.strip().split(" ")[0] for column in ROW_SCHEMA.split(", ")]


@pytest.fixture
def js(nc: sync.Client) -> Iterator[JetStream]:
    js = nc.jetstream()
    js.create_stream(name="BATCH", subjects=["batch.>"], storage="memory", allow_direct=True)
    yield js
    js.delete_stream("BATCH")


def columns(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def batch_source(server: Server, **options: str) -> NatsDataSource:
    return NatsDataSource({"servers": server.url, "stream": "BATCH", **options})


def read_rows(reader: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    """The rows of the tasks, each with copies of the reader and of its partition."""
    rows = []
    for partition in partitions:
        task, part = pickle.loads(pickle.dumps((reader, partition)))
        rows += [row for batch in task.read(part) for row in batch.to_pylist()]
    return rows


def publish_batch(js: JetStream, count: int) -> None:
    for number in range(count):
        js.publish(f"batch.{number % 3}", b"%d" % number, headers={"K": str(number)})


def test_batch_partitions_hold_each_message_once(server: Server, js: JetStream, seed: int) -> None:
    rng = random.Random(seed)
    count, wanted = rng.randint(5, 40), rng.randint(1, 5)
    publish_batch(js, count)
    reader = batch_source(server, minPartitions=str(wanted)).reader(columns(*NAMES))
    partitions = list(reader.partitions())
    publish_batch(js, 3)  # what comes later is not read
    assert len(partitions) == wanted
    assert repr(partitions[0]).startswith("RangePartition(SeqRange(")
    assert [row["seq"] for row in read_rows(reader, partitions)] == list(range(1, count + 1))
    assert list(reader.read(InputPartition(None))) == []  # the partition that Spark adds to an empty table


def test_batch_columns_follow_the_options(server: Server, js: JetStream) -> None:
    publish_batch(js, 2)
    names = [name for name in NAMES if name != "headers"]
    assert batch_source(server).schema() == ROW_SCHEMA
    assert "headers" not in batch_source(server, includeHeaders="false").schema()
    reader = batch_source(server, includeHeaders="false").reader(columns(*names))
    assert [[*row] for row in read_rows(reader, list(reader.partitions()))] == [names] * 2
    for wrong in (columns(*names), columns("a"), columns(*reversed(NAMES))):
        with pytest.raises(ConfigError, match="the columns are"):
            batch_source(server).reader(wrong)
    with pytest.raises(StreamNotFound):
        batch_source(server, stream="NONE").reader(columns(*NAMES)).partitions()


def test_batch_partitions_have_a_limit(server: Server, js: JetStream) -> None:
    publish_batch(js, 25)
    for options, sizes in (
        ({"maxRecordsPerPartition": "10"}, [8, 8, 9]),
        ({"maxRecordsPerPartition": "10", "minPartitions": "5"}, [5] * 5),
        ({"maxRecordsPerPartition": "100", "minPartitions": "2"}, [12, 13]),
        ({"maxRecordsPerPartition": "1"}, [1] * 25),
    ):
        parts = batch_source(server, **options).reader(columns(*NAMES)).partitions()
        assert [part.value.end - part.value.start + 1 for part in parts] == sizes


def test_batch_streams_have_bounds_of_their_own(server: Server, js: JetStream) -> None:
    publish_batch(js, 9)
    js.create_stream(name="BATCH_2", subjects=["more.>"], storage="memory", allow_direct=True)
    try:
        for _ in range(5):
            js.publish("more.a", b"x")
        since = js.stream("BATCH").get_message(8).time
        starts, ends = '{"BATCH": 7, "BATCH_2": "earliest"}', '{"BATCH_2": 3}'
        several = {"stream": "BATCH*", "startingOffsets": starts, "endingOffsets": ends}
        reader = batch_source(server, **several).reader(columns(*NAMES))
        found = [(row["stream"], row["seq"]) for row in read_rows(reader, list(reader.partitions()))]
        assert found == [("BATCH", seq) for seq in (7, 8, 9)] + [("BATCH_2", seq) for seq in (1, 2, 3)]
        by_time = {"stream": "BATCH*", "startingOffsetsByTimestamp": f'{{"BATCH": "{since.rfc3339()}"}}'}
        reader = batch_source(server, **by_time).reader(columns(*NAMES))
        found = [(row["stream"], row["seq"]) for row in read_rows(reader, list(reader.partitions()))]
        assert found == [("BATCH", seq) for seq in (8, 9)] + [("BATCH_2", seq) for seq in range(1, 6)]
    finally:
        js.delete_stream("BATCH_2")
