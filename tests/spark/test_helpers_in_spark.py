"""The helpers where they are meant to run: in the Python workers of Spark, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from natsproto import sync
from natsproto._client import Client
from natsproto.errors import ConfigError
from natsproto.spark import (
    SecretRef,
    SparkNats,
    foreach_batch_writer,
    kv_lookup,
    kv_lookup_udf,
    map_async,
    plan_ranges,
    publish_partition,
    read_range,
    request_partition,
    run_partition,
    stream_dataframe,
    worker_client,
)
from natsproto.spark._client import run_on_loop
from natsproto.testing import run_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.timeout(300)  # the first test waits for a session; cut short, py4j mixes up its answers
_names = (f"H{number}" for number in count())


async def _stream(client: Client, name: str, messages: int) -> None:
    js = client.jetstream()
    await js.create_stream(name=name, subjects=[f"{name}.>"], allow_direct=True)
    async with js.publisher() as publisher:
        for number in range(messages):
            headers = {"N": str(number)} if number % 2 else None
            await publisher.publish(f"{name}.{number % 10}", b"%d" % number, headers=headers)


@pytest.fixture
def name() -> str:
    """A name that nothing else has."""
    return next(_names)


@pytest.fixture
def doubling(nats: SparkNats, nc: sync.Client, name: str) -> Iterator[str]:
    """The subject of a service that doubles what it is sent."""
    subject = f"double.{name}"

    async def serve(client: Client) -> list[contextlib.AsyncExitStack]:
        async def answer() -> None:
            async for message in client.subscribe(subject):
                await message.respond(message.data * 2)

        task = asyncio.create_task(answer())
        stack = contextlib.AsyncExitStack()
        stack.callback(task.cancel)
        await client.flush()
        return [stack]

    (stack,) = run_on_loop(nats, serve)
    yield subject
    run_on_loop(nats, lambda _: stack.aclose())


# ---------------------------------------------------------------- partitions


def test_one_client_for_each_worker_process(spark: SparkSession, nats: SparkNats) -> None:
    async def tell(client: Client, rows: AsyncIterator[Row]) -> AsyncIterator[tuple[int, int, int]]:
        async for row in rows:
            await client.flush()
            yield row["id"], os.getpid(), client.server_info.client_id

    found = spark.range(0, 400, 1, 8).rdd.mapPartitions(run_partition(tell, nats)).collect()
    assert sorted(number for number, _, _ in found) == list(range(400))
    processes = {process: {client for _, other, client in found if other == process} for _, process, _ in found}
    assert os.getpid() not in processes
    assert all(len(clients) == 1 for clients in processes.values()), processes


def test_limit_closes_the_function(spark: SparkSession, nats: SparkNats, name: str) -> None:
    async def endless(client: Client, rows: AsyncIterator[Row]) -> AsyncIterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
        finally:
            await client.request(f"closed.{name}", b"%d" % number)

    async def listen(client: Client) -> asyncio.Task[int]:
        subscription = client.subscribe(f"closed.{name}")

        async def hear() -> int:
            async for message in subscription:
                await message.respond()
                await client.flush()
                return int(message.data)
            return -1

        return asyncio.create_task(hear())

    heard = run_on_loop(nats, listen)
    assert spark.range(0, 10, 1, 1).rdd.mapPartitions(run_partition(endless, nats)).take(5) == [0, 1, 2, 3, 4]

    async def wait(client: Client) -> int:
        return await asyncio.wait_for(heard, 20)

    assert run_on_loop(nats, wait) < 2000, "it was read a little ahead, no more"


def test_rows_are_mapped_by_requests(spark: SparkSession, nats: SparkNats, doubling: str) -> None:
    rows = spark.createDataFrame([(str(number),) for number in range(300)], "data string").repartition(2)
    ask = request_partition(nats, doubling, concurrency=16)
    found = {row["data"]: reply for row, reply in rows.rdd.mapPartitions(ask).collect()}
    assert found == {str(number): str(number).encode() * 2 for number in range(300)}


def test_function_maps_arrow_batches(spark: SparkSession, nats: SparkNats) -> None:
    async def through(client: Client, batches: AsyncIterator[object]) -> AsyncIterator[object]:
        async for batch in batches:
            await client.flush()
            yield batch

    frame = spark.range(0, 1000, 1, 2).mapInArrow(run_partition(through, nats, prefetch=2), "id long")
    assert sorted(row["id"] for row in frame.collect()) == list(range(1000))


def test_error_of_a_row_fails_the_job_with_its_words(spark: SparkSession, nats: SparkNats) -> None:
    async def fails(client: Client, row: Row) -> int:
        raise ValueError("row 7 is no good")

    with pytest.raises(Exception, match="row 7 is no good"):
        spark.range(0, 10, 1, 1).rdd.mapPartitions(map_async(fails, nats)).collect()


def test_plain_udf_uses_the_client_of_its_worker(spark: SparkSession, nats: SparkNats, doubling: str) -> None:
    from pyspark.sql.functions import col, udf

    def double(text: str) -> str:
        with worker_client(nats) as client:
            return client.request(doubling, text.encode()).data.decode()

    twice = udf(lambda text: double(text), "string")  # hints on it would mean something to Spark
    frame = spark.range(0, 20, 1, 2).select(twice(col("id").cast("string")).alias("twice"))
    assert sorted(int(row["twice"]) for row in frame.collect()) == sorted(int(str(n) * 2) for n in range(20))


# ---------------------------------------------------------------- streams


def test_stream_is_a_dataframe(spark: SparkSession, nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _stream, name, 1000)
    frame = stream_dataframe(spark, nats, name, num_partitions=3)
    assert frame.rdd.getNumPartitions() == 3
    rows = sorted(frame.collect(), key=lambda row: row["seq"])
    assert [row["seq"] for row in rows] == list(range(1, 1001))
    expected = list(read_range(nats, plan_ranges(nats, name, num_partitions=1)[0]))
    assert [row["data"] for row in rows] == [bytes(row[4]) for row in expected]
    assert [row["headers"] for row in rows] == [row[5] for row in expected]
    assert [row["size"] for row in rows] == [row[6] for row in expected]
    assert [row["timestamp"].timestamp() for row in rows] == [row[3].timestamp() for row in expected]


def test_dataframe_holds_the_stream_at_its_making(spark: SparkSession, nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _stream, name, 100)
    frame = stream_dataframe(spark, nats, name, subjects=[f"{name}.3"], headers=False)
    with worker_client(nats) as client:
        client.jetstream().publish(f"{name}.3", b"later")
    assert "headers" not in frame.columns
    assert [frame.count(), frame.count()] == [10, 10]
    assert stream_dataframe(spark, nats, name, start="latest").count() == 0


def test_repeated_partition_is_published_once(spark: SparkSession, nats: SparkNats, name: str) -> None:
    run_on_loop(nats, _stream, name, 0)
    rows = spark.range(0, 500, 1, 2).selectExpr(
        f"concat('{name}.', id % 7) as subject", "cast(id as string) as data", "map('Row', cast(id as string)) headers"
    )
    publish = publish_partition(nats, write_id="w1", stable_order=True)
    first = rows.rdd.mapPartitions(publish).collect()
    again = rows.rdd.mapPartitions(publish).collect()
    assert [(one.partition, one.rows, one.duplicates) for one in first] == [(0, 250, 0), (1, 250, 0)]
    assert [(one.partition, one.rows, one.duplicates) for one in again] == [(0, 250, 250), (1, 250, 250)]
    stored = stream_dataframe(spark, nats, name).collect()
    assert sorted(int(row["data"]) for row in stored) == list(range(500))
    assert all(row["headers"]["Row"] == [row["data"].decode()] for row in stored)


def test_task_retried_halfway_doubles_nothing(spark: SparkSession, nats: SparkNats, name: str, tmp_path: Path) -> None:
    run_on_loop(nats, _stream, name, 0)
    publish = publish_partition(nats, write_id="w2", subject=f"{name}.x", stable_order=True, max_pending=10)
    done_once = str(tmp_path / "failed")

    def fail_once(rows: Iterable[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number == 2500 and not os.path.exists(done_once):
                Path(done_once).touch()
                raise RuntimeError("the machine is gone")
            yield row

    rows = spark.range(0, 3000, 1, 1).selectExpr("cast(id as string) as data").rdd.mapPartitions(fail_once)
    (written,) = rows.mapPartitions(publish).collect()
    assert os.path.exists(done_once)
    assert written.rows == 3000
    assert 0 < written.duplicates <= 2500
    assert stream_dataframe(spark, nats, name).count() == 3000


def test_micro_batches_are_published_once(spark: SparkSession, nats: SparkNats, name: str, tmp_path: Path) -> None:
    """The query fails after a batch is published and before Spark has noted it."""
    run_on_loop(nats, _stream, name, 0)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    (source / "1.json").write_text("\n".join(json.dumps({"data": str(n)}) for n in range(100)))
    write = foreach_batch_writer(nats, subject=f"{name}.x", stable_order=True, checkpoint=str(checkpoint))

    def run(after: str) -> None:
        def batch(frame: DataFrame, number: int) -> None:
            write(frame, number)
            if after:
                raise RuntimeError(after)

        lines = spark.readStream.schema("data string").json(str(source))
        query = lines.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="power cut"):
        run("power cut")
    assert stream_dataframe(spark, nats, name).count() == 100
    run("")
    assert stream_dataframe(spark, nats, name).count() == 100


def test_micro_batch_is_written_from_another_thread(
    spark: SparkSession, nats: SparkNats, name: str, tmp_path: Path
) -> None:
    """As with two sinks at a time. Such a thread does not know the query, so it needs a write_id."""
    run_on_loop(nats, _stream, name, 0)
    (tmp_path / "1.json").write_text("\n".join(json.dumps({"data": str(n)}) for n in range(100)))
    place = str(tmp_path / "checkpoint")
    named = foreach_batch_writer(nats, write_id="copy", subject=f"{name}.x", stable_order=True, checkpoint=place)
    unnamed = foreach_batch_writer(nats, subject=f"{name}.y", stable_order=True, checkpoint=place)
    refused: list[str] = []

    def batch(frame: DataFrame, number: int) -> None:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(named, frame, number).result()
            try:
                threads.submit(unnamed, frame, number).result()
            except ConfigError as exc:
                refused.append(str(exc))

    lines = spark.readStream.schema("data string").json(str(tmp_path))
    query = lines.writeStream.foreachBatch(batch).option("checkpointLocation", place)
    query.trigger(availableNow=True).start().awaitTermination()
    assert stream_dataframe(spark, nats, name).count() == 100
    assert "a second thread" in refused[0]


def test_bad_arguments_of_the_writer_are_refused(nats: SparkNats) -> None:
    with pytest.raises(ConfigError, match="no good"):
        foreach_batch_writer(nats, subject="no good", duplicates="allow")
    with pytest.raises(ConfigError, match=r"checkpoint .*duplicates"):
        foreach_batch_writer(nats)


# ---------------------------------------------------------------- lookups


@pytest.fixture
def bucket(nats: SparkNats, name: str) -> str:
    """Keys 0 to 2999 with values, but for those that can be divided by 100, which are deleted."""

    async def make(client: Client) -> None:
        kv = await client.jetstream().create_key_value(bucket=name)
        for number in range(0, 3000, 100):
            await kv.put(f"k.{number}", b"x")
            await kv.delete(f"k.{number}")
        async with client.jetstream().publisher() as publisher:
            for number in range(3000):
                if number % 100:
                    await publisher.publish(f"$KV.{name}.k.{number}", b"v%d" % number)

    run_on_loop(nats, make)
    return name


def test_rows_are_joined_with_a_bucket(spark: SparkSession, nats: SparkNats, bucket: str) -> None:
    rows = spark.range(0, 3200, 1, 2).selectExpr("concat('k.', id) as key", "id")
    found = rows.rdd.mapPartitions(kv_lookup(nats, bucket, "key")).collect()
    assert [row["id"] for row, _ in found] == list(range(3200))
    assert [value for _, value in found] == [
        b"v%d" % number if number % 100 and number < 3000 else None for number in range(3200)
    ]


def test_column_is_looked_up_by_a_udf(spark: SparkSession, nats: SparkNats, bucket: str) -> None:
    frame = spark.range(0, 3200, 1, 2).selectExpr("id", "if(id = 5, null, concat('k.', id)) as key")
    found = frame.withColumn("value", kv_lookup_udf(nats, bucket)("key")).collect()
    assert {row["id"]: row["value"] and bytes(row["value"]) for row in found} == {
        number: b"v%d" % number if number % 100 and number < 3000 and number != 5 else None for number in range(3200)
    }


# ---------------------------------------------------------------- secrets


def test_secret_is_looked_up_on_the_executor(spark: SparkSession, tmp_path: Path) -> None:
    secret = "s3cr3t-w0rd"
    with run_server(jetstream=True, config=f'authorization {{ token: "{secret}" }}') as guarded:
        path = tmp_path / "token"
        path.write_text(secret)
        spark.sparkContext.addFile(str(path))
        config = SparkNats(servers=guarded.url, token=SecretRef.spark_file("token"))

        async def tell(client: Client, rows: AsyncIterator[Row]) -> AsyncIterator[int]:
            async for row in rows:
                await client.flush()
                yield row["id"]

        frame = spark.range(0, 10, 1, 1)
        assert sorted(frame.rdd.mapPartitions(run_partition(tell, config)).collect()) == list(range(10))
        wrong = SparkNats(servers=guarded.url, token=SecretRef.env("NATS_TEST_NOT_SET"))
        with pytest.raises(Exception, match="NATS_TEST_NOT_SET") as caught:
            frame.rdd.mapPartitions(run_partition(tell, wrong)).collect()
        assert secret not in str(caught.value)


def test_server_that_is_not_there_fails_the_job(spark: SparkSession, unused_tcp_port: int) -> None:
    url = f"nats://me:s3cr3t@127.0.0.1:{unused_tcp_port}"
    config = SparkNats(servers=url, allow_literal_secrets=True, outage_timeout=0)

    async def never(client: Client, row: Row) -> int:
        return 0

    with pytest.raises(Exception, match="ConnectFailed") as caught:
        spark.range(0, 1, 1, 1).rdd.mapPartitions(map_async(never, config)).collect()
    assert "s3cr3t" not in str(caught.value)
