"""The data source on a real Spark and a real server: what is read and written, once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from natsproto import connect
from natsproto import spark as nspark
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.policies import RetentionPolicy
from natsproto.spark._range_reader import INACTIVE_THRESHOLD_S
from natsproto.testing._server import Server
from tests.spark.conftest import need_spark

R = TypeVar("R")
pytestmark = pytest.mark.timeout(600)


class Pipe:
    """A server with a stream ORDERS to read and OUT to write, and the words to do it."""

    def __init__(self, server: Server, spark: SparkSession, folder: Path) -> None:
        self.url, self.spark, self.folder = server.url, spark, folder
        self.progress: list[Any] = []
        self.do(
            lambda js: js.create_stream(name="ORDERS", subjects=["orders.>"], storage="memory"),
        )
        self.do(
            lambda js: js.create_stream(name="OUT", subjects=["out.>"], storage="memory", allow_atomic=True),
        )

    def do(self, work: Callable[[JetStream], Awaitable[R]]) -> R:
        async def connected() -> R:
            async with connect(self.url) as client:
                return await work(client.jetstream())

        return asyncio.run(connected())

    def publish(self, count: int, first: int = 0) -> None:
        async def work(js: JetStream) -> None:
            async with js.publisher() as publisher:
                for number in range(first, first + count):
                    headers = {"Number": str(number)} if number % 2 else None
                    await publisher.publish(f"orders.{number % 5}", b"%d" % number, headers=headers)

        self.do(work)

    def numbers(self, stream: str = "OUT", subject: str = "") -> list[int]:
        async def work(js: JetStream) -> list[int]:
            found = (await js.stream(stream)).get_batch(subject=subject)
            return [int(message.data) async for message in found]

        return self.do(work)

    def consumers(self, stream: str = "ORDERS") -> int:
        async def work(js: JetStream) -> int:
            return (await (await js.stream(stream)).info()).state.consumer_count

        return self.do(work)

    def read(self, **options: str) -> DataFrame:
        return self.spark.read.format("nats").options(**{"servers": self.url, "stream": "ORDERS", **options}).load()

    def write(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        given = {"servers": self.url, "stream": "OUT", "stableOrder": "true", **options}
        if "subject" not in frame.columns:
            given.setdefault("subject", "out.rows")
        frame.write.format("nats").options(**given).mode(mode).save()

    def stream(self, source: dict[str, str] | None = None, sink: dict[str, str] | None = None, name: str = "q") -> Any:
        """Runs a query from ORDERS to OUT until it has read all there is; returns the rows of each batch."""
        frame = (
            self.spark.readStream.format("nats")
            .options(**{"servers": self.url, "stream": "ORDERS", **(source or {})})
            .load()
        )
        given = {"servers": self.url, "stream": "OUT", "subject": "out.rows", "stableOrder": "true", **(sink or {})}
        query = (
            frame.select("data")
            .writeStream.format("nats")
            .options(**given)
            .option("checkpointLocation", str(self.folder / name))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self.progress = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return [progress["numInputRows"] for progress in query.recentProgress]


@pytest.fixture
def pipe(nats_server: Server, spark: SparkSession, tmp_path: Path) -> Pipe:
    """Spark finds the data source by itself."""
    return Pipe(nats_server, spark, tmp_path)


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


# ---------------------------------------------------------------- reading


@pytest.mark.smoke
def test_a_stream_is_a_table(pipe: Pipe) -> None:
    pipe.publish(500)
    frame = pipe.read(minPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.orderBy("seq").collect()
    assert [int(row.data) for row in rows] == list(range(500))
    assert rows[1].asDict() | {"timestamp": None} == {
        "stream": "ORDERS",
        "subject": "orders.1",
        "seq": 2,
        "timestamp": None,
        "data": b"1",
        "headers": {"Number": ["1"]},
        "size": len("orders.1") + len("NATS/1.0\r\nNumber: 1\r\n\r\n") + 1,
    }
    assert rows[0].headers is None
    assert pipe.consumers() == 0


def test_an_empty_stream_is_an_empty_table(pipe: Pipe) -> None:
    assert pipe.read().collect() == []


def test_options_choose_what_is_read(pipe: Pipe) -> None:
    pipe.publish(100)
    frame = pipe.read(startingOffsets="11", endingOffsets="60", subjects="orders.1,orders.3", includeHeaders="false")
    assert "headers" not in frame.columns
    assert seqs(frame) == [seq for seq in range(11, 61) if (seq - 1) % 5 in (1, 3)]


@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
def test_reading_takes_nothing_from_a_stream(pipe: Pipe, retention: RetentionPolicy) -> None:
    async def make(js: JetStream) -> None:
        stream = await js.create_stream(name="JOBS", subjects=["jobs"], storage="memory", retention=retention)
        await stream.create_consumer(durable_name="worker")
        for number in range(20):
            await js.publish("jobs", b"%d" % number)

    pipe.do(make)
    assert pipe.read(stream="JOBS").count() == 20
    assert pipe.numbers("JOBS") == list(range(20))
    assert pipe.consumers("JOBS") == 1


def test_payloads_are_columns_of_json(pipe: Pipe) -> None:
    async def publish(js: JetStream) -> None:
        for payload in (b'{"product": "tea", "quantity": 2}', b"no JSON", b'{"product": "mat"}'):
            await js.publish("orders.1", payload)

    pipe.do(publish)
    order = nspark.json("product string, quantity long").alias("order")
    rows = pipe.read().select("seq", order).select("seq", "order.*").orderBy("seq").collect()
    assert [tuple(row) for row in rows] == [(1, "tea", 2), (2, None, None), (3, "mat", None)]


def test_a_limit_leaves_no_consumer_behind(pipe: Pipe) -> None:
    pipe.publish(20_000)
    assert len(pipe.read(batchRows="100", minPartitions="1", readMethod="consumer").take(5)) == 5
    within = (
        time.monotonic() + INACTIVE_THRESHOLD_S / 2
    )  # the worker ends the reading in its own time, the server much later
    while (left := pipe.consumers()) and time.monotonic() < within:
        time.sleep(0.05)
    assert left == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "5"}, "startingOffsets and endingOffsets"),
        ({"password": "hunter2"}, "password"),
        ({"stream": "NONE"}, "NONE"),
    ],
)
def test_unreadable_stream_fails_at_load_or_plan(pipe: Pipe, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words) as refused:
        pipe.read(**options).collect()
    assert "hunter2" not in str(refused.value)


# ---------------------------------------------------------------- writing


def test_a_table_becomes_messages(pipe: Pipe) -> None:
    frame = pipe.spark.range(300).selectExpr(
        "concat('out.', id % 3) AS subject",
        "cast(id AS string) AS data",
        "map('Id', array(cast(id AS string))) headers",
    )
    pipe.write(frame)
    assert sorted(pipe.numbers()) == list(range(300))
    assert sorted(pipe.numbers(subject="out.1")) == list(range(1, 300, 3))


def test_copy_with_headers_obeys_none_of_the_source(pipe: Pipe) -> None:
    """As in the guide: ids of another pipeline, and a rollup that whoever publishes to the source may write."""

    async def fill(js: JetStream) -> None:
        await (await js.stream("OUT")).update(allow_rollup_hdrs=True)
        await (await js.stream("ORDERS")).update(allow_rollup_hdrs=True)
        await js.publish("orders.0", b"0", msg_id="pipeline.0.0.0")
        await js.publish("orders.1", b"1", headers={"Nats-Expected-Stream": "ORDERS", "Kept": "yes"})
        await js.publish("orders.2", b"2", rollup="sub", expected_last_subject_seq=0)
        for number in range(3, 10):
            await js.publish("out.rows", b"%d" % number)

    pipe.do(fill)
    pipe.write(pipe.read().select("data", "headers"))
    assert sorted(pipe.numbers()) == list(range(10))


@pytest.mark.parametrize("how", [{}, {"delivery": "cursor", "cursorSubject": "out.cursors"}])
def test_retried_tasks_store_their_rows_once(pipe: Pipe, how: dict[str, str]) -> None:
    marks = str(pipe.folder)

    def break_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        mark = Path(marks) / f"failed-{context.partitionId()}"
        for count, batch in enumerate(batches):
            if count == 3 and not mark.exists():
                mark.touch()
                raise RuntimeError("broken on purpose")
            yield batch

    pipe.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = pipe.spark.range(0, 1000, 1, 2).selectExpr("cast(id AS string) AS data")
        pipe.write(frame.mapInArrow(break_once, "data string"), **how)
    finally:
        pipe.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(list(pipe.folder.glob("failed-*"))) == 2
    assert sorted(pipe.numbers(subject="out.rows")) == list(range(1000))


def test_a_write_with_an_id_of_its_own_can_be_repeated(pipe: Pipe) -> None:
    frame = pipe.spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS data")
    for _ in range(2):
        pipe.write(frame, writeId="import-7", delivery="cursor", cursorSubject="out.cursors")
    assert sorted(pipe.numbers(subject="out.rows")) == list(range(100))


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("overwrite", {}, "a stream is only appended to"),
        ("append", {"subject": "elsewhere"}, "is not a subject of stream OUT"),
        ("append", {"stableOrder": "false"}, "add a column msg_id"),
        ("append", {"delivery": "twice"}, "must be one of ids, cursor, none"),
    ],
)
def test_unwritable_frame_fails_before_a_task(pipe: Pipe, mode: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        pipe.write(pipe.spark.range(5).selectExpr("cast(id AS string) AS data"), mode, **options)
    assert pipe.numbers() == []


# ---------------------------------------------------------------- streaming


def test_query_resumes_in_batches_of_its_size(pipe: Pipe) -> None:
    need_spark(4, 2)
    pipe.publish(1000)
    batches = pipe.stream({"maxOffsetsPerTrigger": "400"})
    assert batches == [400, 400, 200]
    pipe.publish(250, first=1000)
    assert pipe.stream({"maxOffsetsPerTrigger": "400"}) == [250]
    assert sorted(pipe.numbers()) == list(range(1250))
    assert pipe.consumers() == 0


def purge(pipe: Pipe) -> None:
    async def work(js: JetStream) -> None:
        await (await js.stream("ORDERS")).purge(seq=151)

    pipe.do(work)


def test_what_is_gone_ends_the_query_or_is_passed_over(pipe: Pipe) -> None:
    pipe.publish(100)
    pipe.stream()
    pipe.publish(100, first=100)
    purge(pipe)
    with pytest.raises(PySparkException, match="the stream begins at 151 now"):
        pipe.stream()
    pipe.stream({"failOnDataLoss": "false"})
    assert sorted(pipe.numbers()) == [*range(100), *range(150, 200)]


def test_several_streams_become_one_table(pipe: Pipe) -> None:
    pipe.do(lambda js: js.create_stream(name="ORDERS_OLD", subjects=["old.>"], storage="memory"))

    async def fill(js: JetStream) -> None:
        async with js.publisher() as publisher:
            for number in range(1000, 1400):
                await publisher.publish("old.orders", b"%d" % number)

    pipe.do(fill)
    pipe.publish(600)
    frame = pipe.read(stream="ORDERS*")
    counts = {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()}
    assert counts == {"ORDERS": 600, "ORDERS_OLD": 400}
    assert sum(pipe.stream({"stream": "ORDERS*", "maxOffsetsPerTrigger": "500"})) == 1000
    assert sorted(pipe.numbers()) == [*range(600), *range(1000, 1400)]
    pipe.publish(5, first=600)
    assert pipe.stream({"stream": "ORDERS*"}) == [5]


def test_progress_tells_lag_and_rows_of_the_sink(pipe: Pipe) -> None:
    need_spark(4, 2)
    pipe.publish(1000)
    assert pipe.stream({"maxOffsetsPerTrigger": "400"}) == [400, 400, 200]
    latest = [json.loads(progress["sources"][0]["latestOffset"]) for progress in pipe.progress]
    assert [one["lag"]["ORDERS"] for one in latest] == [600, 200, 0]
    assert [progress["sink"]["numOutputRows"] for progress in pipe.progress] == [400, 400, 200]


def test_sql_metrics_count_rows_and_bytes(pipe: Pipe) -> None:
    need_spark(4, 1)
    pipe.publish(300)
    pipe.write(pipe.read().select("data"))
    pipe.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = pipe.spark._jsparkSession.sharedState().statusStore()
    write = store.executionsList().last()
    values = store.executionMetrics(write.executionId())
    metrics = [write.metrics().apply(index) for index in range(write.metrics().size())]
    found = [(metric.name(), values.apply(metric.accumulatorId())) for metric in metrics]
    assert found.count(("number of output rows", "300")) == 2, f"of the source and of the sink: {found}"
    sent = [value for name, value in found if name == "data sent to Python workers"]
    assert len(sent) == 2
    assert not {"0", "0.0 B"} & {*sent}


def test_threads_write_at_the_same_time(pipe: Pipe) -> None:
    def write(frame: DataFrame) -> None:
        nspark.register(pipe.spark)
        pipe.write(frame)

    frames = [pipe.spark.range(first, first + 200).selectExpr("cast(id AS string) AS data") for first in (0, 200)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, frames))
    assert sorted(pipe.numbers()) == list(range(400))


def test_full_stream_is_read_and_followed(pipe: Pipe) -> None:
    """The stream is at its limit, and new messages push others out of it: all of them in half a minute.

    Where a batch takes longer than that, what was not read is lost, and said to be.
    """
    pipe.do(lambda js: js.create_stream(name="FULL", subjects=["full"], storage="memory", max_msgs=10_000))
    over = threading.Event()

    async def publish(js: JetStream) -> None:
        loop = asyncio.get_running_loop()
        async with js.publisher() as publisher:
            for _ in range(10_000):
                await publisher.publish("full", b"x")
            start, count = loop.time(), 0
            while not over.is_set():
                while count < 300 * (loop.time() - start):
                    await publisher.publish("full", b"x")
                    count += 1
                await asyncio.sleep(0.01)

    publishing = threading.Thread(target=pipe.do, args=(publish,))
    publishing.start()
    try:
        wait_for_trimming(pipe)
        found = seqs(pipe.read(stream="FULL", minPartitions="2"))
        assert len(set(found)) == len(found) > 0
        assert sum(pipe.stream({"stream": "FULL"})) > 0
    finally:
        over.set()
        publishing.join()


def wait_for_trimming(pipe: Pipe) -> None:
    async def first(js: JetStream) -> int:
        return (await (await js.stream("FULL")).info()).state.first_seq

    while pipe.do(first) < 2:
        time.sleep(0.02)


def test_backfill_by_a_query_is_refused(pipe: Pipe) -> None:
    with pytest.raises(PySparkException, match=r"option endingOffsets '5': .*spark\.read"):
        pipe.stream({"endingOffsets": "5"})


def test_complete_mode_is_refused(pipe: Pipe) -> None:
    frame = pipe.spark.readStream.format("nats").options(servers=pipe.url, stream="ORDERS").load()
    counts = frame.groupBy("subject").count().selectExpr("cast(count AS string) AS data")
    writer = (
        counts.writeStream.format("nats")
        .outputMode("complete")
        .options(servers=pipe.url, stream="OUT", subject="out.rows")
    )
    with pytest.raises(PySparkException, match="a stream is only appended to"):
        writer.option("checkpointLocation", str(pipe.folder / "c")).trigger(
            availableNow=True
        ).start().awaitTermination()
