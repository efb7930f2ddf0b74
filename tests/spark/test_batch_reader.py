"""The reader of a batch query as Spark calls it, on a real server and without Spark: its partitions and their rows."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from natsproto import sync
from natsproto.errors import ConfigError, StreamNotFound
from natsproto.spark._schema import ROW_SCHEMA
from natsproto.spark._source import NatsDataSource
from natsproto.sync._jetstream import JetStream
from natsproto.testing import Server

NAMES = [column.strip().split(" ")[0] for column in ROW_SCHEMA.split(", ")]
SUBJECT, SEQ, TIME = ("subject",), ("seq",), ("timestamp",)


@pytest.fixture
def js(nc: sync.Client) -> Iterator[JetStream]:
    js = nc.jetstream()
    js.create_stream(name="BATCH", subjects=["batch.>"], storage="memory", allow_direct=True)
    yield js
    js.delete_stream("BATCH")


def columns(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def source(server: Server, **options: str) -> NatsDataSource:
    return NatsDataSource({"servers": server.url, "stream": "BATCH", **options})


def read(reader: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    """The rows of the tasks, each with copies of the reader and of its partition."""
    rows = []
    for partition in partitions:
        task, part = pickle.loads(pickle.dumps((reader, partition)))
        rows += [row for batch in task.read(part) for row in batch.to_pylist()]
    return rows


def publish(js: JetStream, count: int) -> None:
    for number in range(count):
        js.publish(f"batch.{number % 3}", b"%d" % number, headers={"K": str(number)})


def test_batch_partitions_hold_each_message_once(server: Server, js: JetStream, seed: int) -> None:
    rng = random.Random(seed)
    count, wanted = rng.randint(5, 40), rng.randint(1, 5)
    publish(js, count)
    reader = source(server, minPartitions=str(wanted)).reader(columns(*NAMES))
    partitions = list(reader.partitions())
    publish(js, 3)  # what comes later is not read
    assert len(partitions) == wanted
    assert repr(partitions[0]).startswith("RangePartition(SeqRange(")
    assert [row["seq"] for row in read(reader, partitions)] == list(range(1, count + 1))
    assert list(reader.read(InputPartition(None))) == []  # the partition that Spark adds to an empty table


def test_batch_columns_follow_the_options(server: Server, js: JetStream) -> None:
    publish(js, 2)
    names = [name for name in NAMES if name != "headers"]
    assert source(server).schema() == ROW_SCHEMA
    assert "headers" not in source(server, includeHeaders="false").schema()
    reader = source(server, includeHeaders="false").reader(columns(*names))
    assert [[*row] for row in read(reader, list(reader.partitions()))] == [names] * 2
    for wrong in (columns(*names), columns("a"), columns(*reversed(NAMES))):
        with pytest.raises(ConfigError, match="the columns are"):
            source(server).reader(wrong)
    with pytest.raises(StreamNotFound):
        source(server, stream="NONE").reader(columns(*NAMES)).partitions()


@pytest.mark.parametrize(
    ("filters", "seqs", "left"),
    [
        ([GreaterThan(SEQ, 5), LessThan(SEQ, 9)], [6, 7, 8], 0),
        ([EqualTo(SUBJECT, "batch.1")], [2, 5, 8], 0),
        ([EqualTo(SUBJECT, "batch.1"), GreaterThanOrEqual(SEQ, 5)], [5, 8], 0),
        ([EqualTo(SUBJECT, "other")], [], 0),
        ([GreaterThan(SEQ, 99)], [], 0),
        ([GreaterThan(TIME, datetime(2020, 1, 1, tzinfo=UTC))], list(range(1, 10)), 1),
        ([LessThan(TIME, datetime(2020, 1, 1, tzinfo=UTC))], [], 1),
        ([GreaterThan(TIME, datetime.now(UTC) + timedelta(days=1))], [], 1),
        ([GreaterThan(TIME, datetime(1600, 1, 1, tzinfo=UTC))], list(range(1, 10)), 1),
        ([LessThan(TIME, datetime(1600, 1, 1, tzinfo=UTC))], [], 1),
        ([GreaterThan(TIME, datetime.max.replace(tzinfo=UTC))], [], 1),
        ([LessThan(TIME, datetime.max.replace(tzinfo=UTC))], list(range(1, 10)), 1),
        ([EqualTo(("data",), b"1")], list(range(1, 10)), 1),
    ],
)
def test_batch_filters_bound_what_is_read(
    filters: list[Filter], seqs: list[int], left: int, server: Server, js: JetStream
) -> None:
    publish(js, 9)
    reader: Any = source(server, pushdown="true").reader(columns(*NAMES))
    assert len(list(reader.pushFilters(filters))) == left
    found = [row["seq"] for row in read(reader, list(reader.partitions()))]
    assert sorted(found) == seqs
