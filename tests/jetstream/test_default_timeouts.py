"""A timeout that nothing could succeed within is refused where it is given as the default of what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

import natsproto.otel
from natsproto import Client, sync
from natsproto.errors import ConfigError, RequestTimeout
from natsproto.jetstream._context import JetStream
from natsproto.spark import SparkNats, map_async, publish_partition, request_partition
from natsproto.testing import Server
from tests.jetstream.reading import known

NOTHING = pytest.mark.parametrize("nothing", [0, 0.0, timedelta(0)])


def zero_is_refused() -> AbstractContextManager[object]:
    return pytest.raises(ConfigError, match=r"^timeout 0\.0: must be more than 0 seconds")


@NOTHING
async def test_a_context_is_not_made_with_it(nats_server: Server, nats_client: Client, nothing: float) -> None:
    with zero_is_refused():
        nats_client.jetstream(timeout=nothing)
    async with natsproto.otel.connect(nats_server.url) as traced:
        with zero_is_refused():
            traced.jetstream(timeout=nothing)


@NOTHING
def test_a_blocking_context_is_not_made_with_it(nats_server: Server, nothing: float) -> None:
    with sync.connect(nats_server.url) as nc, zero_is_refused():
        nc.jetstream(timeout=nothing)


@NOTHING
async def test_a_publisher_or_batch_is_not_made_with_it(jetstream: JetStream, nothing: float) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    makers: list[Callable[..., object]] = [jetstream.publisher, jetstream.fast_publisher, jetstream.atomic_batch]
    for make in (*makers, kv.atomic):
        with zero_is_refused():
            make(timeout=nothing)


async def test_an_object_is_not_put_or_got_with_it(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="o", allow_batched=True)
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        taken += 1
        yield b"1"

    await store.put("o", b"1")
    for call in (store.put("o", source(), timeout=0), store.info("o", timeout=0), store.get_bytes("o", timeout=0)):
        with zero_is_refused():
            await call
    assert taken == 0


async def test_a_key_is_not_read_or_written_with_it(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    revision = await kv.put("k", b"1")
    for call in (
        kv.get("k", timeout=0),
        kv.get("k", direct=False, timeout=0),
        kv.put("k", b"2", timeout=0),
        kv.update("k", b"2", revision, timeout=0),
        kv.delete("k", timeout=0),
    ):
        with zero_is_refused():
            await call
    assert (await kv.get("k", direct=False)).revision == revision


async def _flush(client: Client, row: bytes) -> None:
    await client.flush()


@NOTHING
def test_rows_are_not_sent_with_it(nothing: float) -> None:
    config = SparkNats(servers="nats://127.0.0.1:4222")
    with zero_is_refused():
        publish_partition(config, write_id="w", timeout=nothing)
    with zero_is_refused():
        request_partition(config, "a", payload="data", timeout=nothing)
    with zero_is_refused():
        map_async(_flush, config, timeout=nothing)


async def test_what_is_there_now_can_be_asked_for_as_before(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"])
    consumer = await stream.create_consumer(durable_name="C")
    assert await consumer.fetch(3, timeout=0) == []
    with pytest.raises(RequestTimeout):
        await consumer.next(timeout=0)
    await jetstream.publish("s", b"1")
    await known(consumer, lambda info: info.num_pending == 1)  # the stream tells its consumers after its reply
    assert (await consumer.next(timeout=0)).data == b"1"
