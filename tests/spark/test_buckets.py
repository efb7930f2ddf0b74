"""A bucket as a table of its current values, and as the target of a DataFrame: values are put, nulls delete keys."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

import natsproto
from natsproto import Client, sync
from natsproto.errors import BucketNotFound, ConfigError, InvalidSubject
from natsproto.jetstream import JetStream, PubAck, StreamSource
from natsproto.jetstream.kv import KeyValue
from natsproto.spark import register
from natsproto.spark._options import SinkOptions
from natsproto.spark._source import NatsDataSource
from natsproto.spark._task import WriteResult, WriteTask
from natsproto.spark._writer import check_target, write_messages
from natsproto.testing import Server
from tests.spark.conftest import need_java, need_spark
from tests.spark.streams import window_over

ROOT = Path(__file__).parent.parent.parent
SINK = SinkOptions.read({"servers": "nats://127.0.0.1:4222", "bucket": "prices"})
TASK = WriteTask(owner="query", epoch=3, partition=1)
TABLE = StructType([StructField(name, StringType()) for name in ("key", "value", "revision", "timestamp")])


def entries(**values: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(values), "value": pa.array(list(values.values()), pa.string())})


async def write_batches(
    client: Client, task: WriteTask, *batches: pa.RecordBatch, how: SinkOptions = SINK
) -> WriteResult:
    async def rows() -> AsyncIterator[pa.RecordBatch]:
        for one in batches:
            yield one

    (done,) = [done async for done in write_messages(client, how, task, rows())]
    return done


@pytest.fixture
async def prices(jetstream: JetStream) -> KeyValue[bytes]:
    return await jetstream.create_key_value("prices", storage="memory")


async def values(bucket: KeyValue[bytes]) -> dict[str, bytes]:
    return {key: (await bucket.get(key)).value async for key in bucket.keys()}  # noqa: SIM118  # no dict


async def bucket_window_over(jetstream: JetStream) -> None:
    """Waits until the bucket's stream has forgotten the ids that it knows."""
    stream = await jetstream.stream("KV_prices")
    await stream.update(duplicate_window=0.1)
    await window_over(jetstream, "$KV.prices.other")
    await stream.purge(subject="$KV.prices.other")


async def test_values_are_put_and_nulls_delete(nats_client: Client, prices: KeyValue[bytes]) -> None:
    await prices.put("old", b"1")
    done = await write_batches(nats_client, TASK, entries(a="1", b="2"), entries(a="3", old=None))
    assert done == WriteResult(rows=4, duplicates=0)
    assert await values(prices) == {"a": b"3", "b": b"2"}
    assert [entry.operation.value for entry in await prices.history("old")] == ["DEL"]


def again() -> WriteTask:
    """The task, repeated: it was planned first before anything of it was put."""
    return TASK.replace(is_repeated=True, since=time.time() - 2)


@pytest.mark.parametrize("history", [1, 5])
@pytest.mark.parametrize("forgotten", [False, True])
async def test_task_that_runs_again_changes_nothing(
    nats_client: Client, jetstream: JetStream, history: int, forgotten: bool
) -> None:
    """The second value of a key in one task stays, although its first one may be gone from the bucket."""
    prices = await jetstream.create_key_value("prices", storage="memory", history=history)
    rows = [entries(a="1", b="2"), entries(a="3", b=None, c="4")]
    await write_batches(nats_client, TASK.replace(epoch=2), entries(z="0"))
    assert (await write_batches(nats_client, TASK, *rows)).duplicates == 0
    before = {key: await prices.history(key) for key in "abc"}
    if forgotten:
        await bucket_window_over(jetstream)
    assert await write_batches(nats_client, again(), *rows) == WriteResult(rows=5, duplicates=5)
    assert {key: await prices.history(key) for key in "abc"} == before
    assert await values(prices) == {"a": b"3", "c": b"4", "z": b"0"}


@pytest.mark.parametrize("forgotten", [False, True])
async def test_task_that_died_half_way_is_completed(
    nats_client: Client, jetstream: JetStream, prices: KeyValue[bytes], forgotten: bool
) -> None:
    await write_batches(nats_client, TASK, entries(a="1", b="2"))
    if forgotten:
        await bucket_window_over(jetstream)
    rows = entries(a="1", b="2"), entries(a="3", c="4")
    assert (await write_batches(nats_client, again(), *rows)).duplicates == 2
    assert await values(prices) == {"a": b"3", "b": b"2", "c": b"4"}


@pytest.mark.parametrize("forgotten", [False, True])
async def test_value_changed_since_is_never_put_back(
    nats_client: Client, jetstream: JetStream, prices: KeyValue[bytes], forgotten: bool
) -> None:
    """Whether the first attempt had put the key before, or not; a deletion is a change."""
    await prices.put("old", b"0")
    planned = (await prices.get("old")).created
    while (await prices.put("clock", b"")) and (  # noqa: ASYNC110  # by the clock of the server
        await prices.get("clock")
    ).created < planned + timedelta(seconds=0.3):
        await asyncio.sleep(0.02)
    await prices.delete("clock")
    task = TASK.replace(is_repeated=True, since=time.time() - 0.1)
    await write_batches(nats_client, TASK, entries(a="1", b="2", e="5"))
    await prices.put("a", b"theirs")
    await prices.delete("b")
    await prices.put("c", b"theirs")
    if forgotten:
        await bucket_window_over(jetstream)
    done = await write_batches(nats_client, task, entries(a="1", b="2", e="5"), entries(c="3", d="4", old="1"))
    assert done == WriteResult(rows=6, duplicates=4)
    assert await values(prices) == {"a": b"theirs", "c": b"theirs", "d": b"4", "e": b"5", "old": b"1"}


async def test_a_change_between_reading_and_putting_stays(
    nats_client: Client, prices: KeyValue[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = JetStream.publish

    async def meanwhile(self: JetStream, subject: str, payload: bytes, **args: Any) -> PubAck:
        await prices.put("a", b"theirs")
        return await publish(self, subject, payload, **args)

    monkeypatch.setattr(JetStream, "publish", meanwhile)
    assert (await write_batches(nats_client, again(), entries(a="1"))).duplicates == 1
    assert await values(prices) == {"a": b"theirs"}


async def test_a_bucket_with_cursors_is_exact(nats_client: Client, jetstream: JetStream) -> None:
    """Its stream has the subject of cursors, besides that of the keys."""
    prices = await jetstream.create_key_value("prices", storage="memory", history=5)
    await jetstream.update_stream("KV_prices", allow_atomic=True, subjects=["$KV.prices.>", "$CURSOR.KV_prices.>"])
    how = SinkOptions.read(
        {"servers": "nats://127.0.0.1:4222", "bucket": "prices", "delivery": "cursor", "stableOrder": "true"}
    )
    rows = entries(a="1", b="2", c="1"), entries(a="3", c=None)
    await write_batches(nats_client, TASK, rows[0], how=how)
    assert await write_batches(nats_client, TASK, *rows, how=how) == WriteResult(rows=5, duplicates=3)
    await prices.put("a", b"theirs")
    await bucket_window_over(jetstream)
    assert await write_batches(nats_client, TASK, *rows, how=how) == WriteResult(rows=5, duplicates=5)
    assert await values(prices) == {"a": b"theirs", "b": b"2"}


@pytest.mark.parametrize("key", ["a b", "a.*", "", None])
async def test_invalid_key_is_named_before_a_byte(
    nats_client: Client, prices: KeyValue[bytes], key: str | None
) -> None:
    batch = pa.RecordBatch.from_pydict({"key": pa.array(["ok", key]), "value": pa.array(["1", "2"])})
    with pytest.raises(InvalidSubject):
        await write_batches(nats_client, TASK, batch)
    assert await values(prices) == {}


async def test_mirror_of_a_bucket_is_not_written(
    nats_client: Client, jetstream: JetStream, prices: KeyValue[bytes]
) -> None:
    await jetstream.create_key_value("copy", storage="memory", mirror=StreamSource(name="KV_prices"))
    with pytest.raises(ConfigError, match="is a mirror"):
        await check_target(nats_client, SINK.replace(bucket="copy", stream="KV_copy"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "ORDERS"}, "cannot be given with stream"),
        ({"subject": "a"}, "cannot be given with stream"),
        ({"bucket": "a.b"}, "bucket"),
    ],
)
def test_bucket_of_a_sink_stands_alone(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SinkOptions.read({"servers": "nats://127.0.0.1", "bucket": "prices", **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"stream": "ORDERS"}, "leave out streams"), ({"subjects": "a", "startingOffsets": "5"}, "subjects, start")],
)
def test_bucket_of_a_source_stands_alone(options: dict[str, str], words: str) -> None:
    source = NatsDataSource({"servers": "nats://127.0.0.1", "bucket": "prices", **options})
    with pytest.raises(ConfigError, match=words):
        source.schema()


@pytest.mark.parametrize(
    ("names", "words"),
    [(["key"], "must be key and value"), (["key", "data"], "not part of an entry: select only key, value")],
)
def test_columns_of_a_bucket_are_checked(names: list[str], words: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in names])
    with pytest.raises(ConfigError, match=words):
        NatsDataSource({"servers": "nats://127.0.0.1", "bucket": "prices"}).streamWriter(schema, False)


def test_bucket_that_is_not_there_is_named(server: Server) -> None:
    source = NatsDataSource({"servers": server.url, "bucket": "NONE"})
    reader = source.reader(TABLE)
    with pytest.raises(BucketNotFound):
        list(reader.read(InputPartition(None)))


def test_each_key_is_read_once_while_it_changes(server: Server, nc: sync.Client) -> None:
    bucket = nc.jetstream().create_key_value("changing", storage="memory")
    for number in range(2000):
        bucket.put(f"k{number}", b"1")
    source = NatsDataSource({"servers": server.url, "bucket": "changing", "batchRows": "100"})
    found: list[str] = []
    for number, batch in enumerate(source.reader(TABLE).read(InputPartition(None))):
        found += batch.column("key").to_pylist()
        bucket.put(f"k{1999 - number}", b"2")
        bucket.put(f"k{number}", b"2")
    assert sorted(found) == sorted(f"k{number}" for number in range(2000))


def test_bucket_is_a_table_of_current_values(spark: SparkSession, server: Server, nc: sync.Client) -> None:
    register(spark)
    bucket = nc.jetstream().create_key_value("rates", storage="memory", history=3)
    bucket.put("eur", b"1")
    options = {"servers": server.url, "bucket": "rates"}
    rows = spark.createDataFrame([("usd", "2"), ("gbp", "3"), ("eur", None)], "key string, value string")
    rows.write.format("nats").options(**options).mode("append").save()
    spark.createDataFrame([("usd", "4")], "key string, value string").write.format("nats").options(**options).mode(
        "append"
    ).save()
    table = spark.read.format("nats").options(**options).load()
    assert table.columns == ["key", "value", "revision", "timestamp"]
    found = table.selectExpr("key", "cast(value AS string) AS value").orderBy("key").collect()
    assert [tuple(row) for row in found] == [("gbp", "3"), ("usd", "4")]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW rates USING nats OPTIONS (servers '{server.url}', bucket 'rates')")
    assert spark.sql("SELECT count(*) AS n FROM rates WHERE key = 'usd'").first().n == 1  # type: ignore[union-attr]


def test_tables_of_a_catalog_are_refused(spark: SparkSession, server: Server, nc: sync.Client) -> None:
    register(spark)
    nc.jetstream().create_stream(name="SQL", subjects=["sql.>"], storage="memory")
    options = f"OPTIONS (servers '{server.url}', stream 'SQL')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sql_rows USING nats {options}")
    for statement in (
        f"CREATE TABLE sql_table USING nats {options}",
        "INSERT INTO sql_rows SELECT * FROM sql_rows",
    ):
        with pytest.raises(AnalysisException, match=r"CREATE TABLE and INSERT.*TEMPORARY VIEW"):
            spark.sql(statement)


@pytest.mark.spark_full
@pytest.mark.timeout(900)
async def test_windows_in_a_bucket_survive_a_kill(nats_server: Server, tmp_path: Path, seed: int) -> None:
    """6000 orders, one a second, in windows of 100: each window is put once, with all its orders."""
    need_java()
    need_spark(4, 2)  # older ones make one micro-batch, and its watermark closes windows in the next
    async with natsproto.connect(nats_server.url) as client:
        js = client.jetstream()
        await js.create_stream(name="ORDERS", subjects=["orders"], storage="memory")
        windows = await js.create_key_value("windows", storage="memory", history=5)
        async with js.publisher() as publisher:
            for number in [*range(6000), 1_000_000]:  # the last one closes the windows before it
                await publisher.publish("orders", b"%d" % number)
        stream = await js.stream("KV_windows")
        for wanted in [random.Random(seed).randrange(1, 50), 10_000]:
            environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
            command = [sys.executable, "-m", "tests.spark.window_job", nats_server.url, str(tmp_path)]
            with (tmp_path / "job.log").open("ab") as log:
                job = await asyncio.create_subprocess_exec(
                    *command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            while job.returncode is None and (await stream.info()).state.messages < wanted:
                with suppress(TimeoutError):
                    await asyncio.wait_for(job.wait(), 0.02)
            if job.returncode is None:
                os.killpg(job.pid, signal.SIGKILL)
                await job.wait()
            else:
                assert job.returncode == 0, (tmp_path / "job.log").read_text()[-4000:]
        seqs = {first: range(first + 1, first + 101) for first in range(0, 6000, 100)}
        assert await values(windows) == {f"w{first}": b"100 %d" % sum(found) for first, found in seqs.items()}
        assert (await stream.info()).state.messages == 60
