"""What the data source promises beside its rows: secrets stay where they are, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from natsproto import connect
from natsproto.jetstream._context import JetStream
from natsproto.spark import register
from natsproto.spark._range_reader import INACTIVE_THRESHOLD_S
from natsproto.testing import run_server
from natsproto.testing._server import Server

R = TypeVar("R")
SECRET = "s3cr3t-h4ntor2"
pytestmark = pytest.mark.timeout(600)


def do(url: str, work: Callable[[JetStream], Awaitable[R]], token: str | None = None) -> R:
    async def connected() -> R:
        async with connect(url, token=token) as client:
            return await work(client.jetstream())

    return asyncio.run(connected())


async def orders_stream(js: JetStream, count: int = 1000) -> None:
    await js.create_stream(name="ORDERS", subjects=["orders"], storage="memory")
    await js.create_stream(name="OUT", subjects=["out"], storage="memory")
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish("orders", b"%d" % number)


async def consumer_states(js: JetStream) -> dict[str, str]:
    """The consumers of the stream, and what the server knows of them."""
    stream = await js.stream("ORDERS")
    return {
        info.name: f"{info.created} {info.delivered} {info.num_waiting} waiting" async for info in stream.consumers()
    }


def test_secret_is_in_no_plan_log_or_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    reference = tmp_path / "token"
    reference.write_text(SECRET)
    with run_server(jetstream=True, token=SECRET) as server:
        do(server.url, orders_stream, SECRET)
        options = {"servers": server.url, "stream": "ORDERS", "token": f"file:{reference}"}
        table = spark.read.format("nats").options(**options).load()
        assert table.count() == 1000
        sink = {**options, "stream": "OUT", "subject": "out", "stableOrder": "true"}
        table.select("data").write.format("nats").options(**sink).mode("append").save()
        query = (
            spark.readStream.format("nats")
            .options(**options)
            .load()
            .select("data")
            .writeStream.format("nats")
            .options(**sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        said = [
            str(table._jdf.queryExecution().toString()),
            str(query.recentProgress),
        ]
        # A secret that is written out travels with the tasks, and is in nothing that anybody reads all the same.
        literal = {**options, "token": SECRET, "allowLiteralSecrets": "true"}
        again = spark.read.format("nats").options(**literal).load()
        assert again.count() == 1000
        said.append(str(again._jdf.queryExecution().toString()))
        wrong = {**literal, "token": f"not-{SECRET}"}
        closed = {**literal, "token": "", "servers": f"nats://{SECRET}@127.0.0.1:1"}
        closed.pop("token")
        for given in (wrong, closed):
            with pytest.raises(PySparkException) as refused:
                spark.read.format("nats").options(**given).load().count()
            said.append(str(refused.value))
    kept = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    events = [path for path in Path(str(spark.conf.get("spark.eventLog.dir"))).rglob("*") if path.is_file()]
    assert kept
    assert events
    assert any(b"BatchScan" in path.read_bytes() for path in events)
    leaks = [path.name for path in [*kept, *events] if SECRET.encode() in path.read_bytes()]
    assert leaks == []
    assert [text for text in said if SECRET in text] == []


@pytest.mark.spark_full
def test_a_cancelled_job_leaves_nothing_behind(spark: SparkSession, nats_server: Server) -> None:
    """Spark kills its workers; the server removes their consumers when they have been silent for a while."""
    register(spark)
    do(nats_server.url, lambda js: orders_stream(js, 50_000))

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(1)  # the job's own slowness
            yield batch

    options = {"servers": nats_server.url, "stream": "ORDERS", "batchRows": "100", "readMethod": "consumer"}
    table = spark.read.format("nats").options(**options).load().select("data")
    failed: list[BaseException] = []

    def work() -> None:
        spark.sparkContext.setJobGroup("cancelled", "to be cancelled", interruptOnCancel=True)
        try:
            table.mapInArrow(slow, "data binary").count()
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 120
    while not do(nats_server.url, consumer_states):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    spark.sparkContext.cancelJobGroup("cancelled")
    thread.join()
    assert failed
    left, seen, deadline = do(nats_server.url, consumer_states), set[str](), 0.0
    while left and (left.keys() - seen or time.monotonic() < deadline):
        if left.keys() - seen:  # a worker that was still starting on a busy machine made one after the end of the job
            seen |= left.keys()
            deadline = time.monotonic() + 2 * INACTIVE_THRESHOLD_S + 10
        time.sleep(0.05)
        left = do(nats_server.url, consumer_states)
    assert left == {}


@pytest.mark.spark_full
@pytest.mark.parametrize("method", ["consumer", "direct"])
def test_stalled_reader_keeps_its_connection(spark: SparkSession, nats_server: Server, method: str) -> None:
    register(spark)
    do(nats_server.url, lambda js: orders_stream(js, 30_000))

    def stall(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 1:
                time.sleep(10)  # the job's own stall
            yield batch

    options = {"servers": nats_server.url, "stream": "ORDERS", "batchRows": "500", "minPartitions": "1"}
    table = spark.read.format("nats").options(**options, readMethod=method, pingInterval="1").load()
    rows = table.select("data").mapInArrow(stall, "data binary").collect()
    assert sorted(int(row.data) for row in rows) == list(range(30_000))
    assert "Stale" not in nats_server.log()
    assert "Slow Consumer" not in nats_server.log()
