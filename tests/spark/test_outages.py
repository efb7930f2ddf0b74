"""Whatever asks first waits for the end of an outage, as reading in the middle of a range does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.datasource import InputPartition

from natsproto._client import Client
from natsproto.errors import (
    BucketNotFound,
    ConnectFailed,
    ConnectionLost,
    JetStreamNotEnabled,
    LoginRefused,
    NatsError,
    NoResponders,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.spark import SecretRef, SparkNats, kv_lookup, plan_ranges, read_range, worker_client
from natsproto.spark._client import close_workers, run_on_loop
from natsproto.spark._options import SinkOptions, SourceOptions
from natsproto.spark._outages import outlast
from natsproto.spark._source import BucketReader, StreamingReader
from natsproto.spark._writer import check_target
from natsproto.testing import Server, run_server
from tests.kit.clock import virtual_clock
from tests.kit.waiting import eventually
from tests.spark.streams import METHODS, StreamFixture


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be killed."""
    with run_server(jetstream=True) as running:
        yield running
        close_workers()


async def make_bucket(client: Client) -> None:
    bucket = await client.jetstream().create_key_value("B")
    await bucket.put("k", b"v")


@pytest.mark.slow
def test_what_asks_first_waits(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A plan, a look of a query, ranges, a bucket, a lookup and the check of a sink begin while the server is away."""
    caplog.set_level(logging.WARNING, "natsproto")
    nats = SparkNats(servers=server.url)
    source = StreamFixture(nats)
    source.publish(30)
    run_on_loop(nats, make_bucket)
    (seq_range,) = plan_ranges(nats, source.name, num_partitions=1)
    query = StreamingReader(SourceOptions(nats=nats, streams=(source.name,)))
    start = query.initialOffset()
    sink = SinkOptions(nats=nats, stream=source.name, subject=f"{source.name}.a")
    whole = InputPartition(None)
    asked: list[Callable[[], object]] = [
        lambda: len(plan_ranges(nats, source.name, num_partitions=2)),
        lambda: query.latestOffset(start)["s"][source.name]["seq"],
        *[lambda way=way: len(list(read_range(nats, seq_range, method=way))) for way in METHODS],
        lambda: sum(batch.num_rows for batch in BucketReader(SourceOptions(nats=nats, bucket="B")).read(whole)),
        lambda: next(iter(kv_lookup(nats, "B", "key")([{"key": "k"}])))[1],
        lambda: run_on_loop(nats, check_target, sink).name,
    ]
    results: dict[int, object] = {}

    def ask(number: int) -> None:
        try:
            results[number] = asked[number]()
        except NatsError as exc:
            results[number] = exc

    server.kill()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()

    async def restart() -> None:
        def waiting() -> bool:
            return caplog.text.count("s for the end of an outage: ") >= len(asked)

        await eventually(waiting)
        await server.restart()

    asyncio.run(restart())
    for thread in threads:
        thread.join(60)
    assert results == {0: 2, 1: 31, 2: 30, 3: 30, 4: 1, 5: b"v", 6: source.name}


def test_first_connection_waits(server: Server) -> None:
    """As that of a task that begins in an outage."""
    nats = SparkNats(servers=server.url)
    source = StreamFixture(nats)
    source.publish(30)
    close_workers()
    server.kill()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(plan_ranges(nats, source.name, num_partitions=3))))
    thread.start()
    asyncio.run(server.restart())
    thread.join(60)
    assert found == [3]


def test_missing_or_wrong_secret_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an outage passes by itself."""
    with run_server(config='authorization { token: "right" }') as guarded:
        nats = SparkNats(servers=guarded.url, token=SecretRef.env("NATS_TEST_TOKEN"))
        for value, error in (("", ConnectFailed), ("wrong", LoginRefused)):
            monkeypatch.setenv("NATS_TEST_TOKEN", value)
            began = time.monotonic()
            with pytest.raises(error), worker_client(nats) as client:
                client.flush()
            assert time.monotonic() - began < nats.outage_timeout / 2
        close_workers()


def test_what_is_not_there_is_not_waited_for(server: Server) -> None:
    nats = SparkNats(servers=server.url)
    with pytest.raises(StreamNotFound):
        plan_ranges(nats, "NOWHERE")
    with pytest.raises(BucketNotFound):
        list(kv_lookup(nats, "NOWHERE", "key")([{"key": "k"}]))


@virtual_clock
async def test_class_of_an_error_decides() -> None:
    errors: list[NatsError] = []

    async def fail() -> str:
        if errors:
            raise errors.pop()
        return "done"

    errors = [ConnectionLost("gone"), NoResponders("$JS.API.INFO"), JetStreamNotEnabled(503, 10039, "not enabled")]
    assert await outlast("what", 60, fail) == "done"
    for first in (NoResponders("$JS.API.INFO"), JetStreamNotEnabled(503, 10039, "not enabled")):
        errors = [ConnectionLost("gone"), first]
        with pytest.raises(type(first)):
            await outlast("what", 60, fail, existed=False)
    errors = [ConnectionLost("gone")] * 10_000
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    with pytest.raises(RequestTimeout, match=r"what \(last error: .*gone.*within 90 s"):
        await outlast("what", 90, fail)
    assert 80 < loop.time() - began <= 90
    errors = [ConnectionLost("gone")]
    with pytest.raises(RequestTimeout):
        await outlast("what", 0, fail)
