"""JetStream of nats-py on natsproto: streams, push and pull, buckets and objects."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import io
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.js import JetStreamContext, api
from natsproto.compat.nats.js import errors as js_errors
from natsproto.testing import Server


@pytest.fixture
async def js(nc: nats.NATS) -> JetStreamContext:
    context = nc.jetstream()
    await context.add_stream(name="S", subjects=["s.>"], max_age=60.5)
    return context


async def publish_with_headers(js: JetStreamContext, count: int) -> None:
    for number in range(count):
        await js.publish("s.a", b"%d" % number, headers={"N": str(number)})


async def test_stream_is_managed_with_dataclasses(js: JetStreamContext) -> None:
    info = await js.stream_info("S")
    assert (info.config.name, info.config.max_age, info.config.retention) == ("S", 60.5, api.RetentionPolicy.LIMITS)
    again = api.StreamConfig.from_response(info.config.as_dict())
    assert again == info.config
    changed = await js.update_stream(info.config, description="more")
    assert changed.config.description == "more"
    assert await js.find_stream_name_by_subject("s.a") == "S"
    assert [info.config.name for info in await js.streams_info()] == ["S"]
    ack = await js.publish("s.a", b"1", stream="S", headers={"Nats-Msg-Id": "1"})
    assert (ack.stream, ack.seq, ack.duplicate) == ("S", 1, None)
    assert (await js.publish("s.a", b"1", headers={"Nats-Msg-Id": "1"})).duplicate is True
    message = await js.get_msg("S", seq=1)
    assert (message.data, message.headers) == (b"1", {"Nats-Msg-Id": "1", "Nats-Expected-Stream": "S"})
    assert (await js.get_last_msg("S", "s.a")).seq == 1
    assert await js.delete_msg("S", 1)
    assert await js.purge_stream("S")
    assert await js.delete_stream("S")


async def test_errors_of_the_api_are_those_of_nats_py(js: JetStreamContext) -> None:
    with pytest.raises(js_errors.NotFoundError) as caught:
        await js.stream_info("NONE")
    assert (caught.value.code, caught.value.err_code) == (404, 10059)
    with pytest.raises(js_errors.BadRequestError):
        await js.add_stream(name="S", subjects=["other"])
    with pytest.raises(js_errors.NoStreamResponseError):
        await js.publish("nowhere", b"")
    with pytest.raises(js_errors.APIError, match="expected stream"):
        await js.publish("s.a", b"", stream="OTHER")
    with pytest.raises(ValueError, match="stream name"):
        await js.stream_info("a.b")


@pytest.mark.differs("`delivered` of a pull subscription")
async def test_pull_returns_as_soon_as_there_is_one(js: JetStreamContext) -> None:
    await publish_with_headers(js, 3)
    sub = await js.pull_subscribe("s.a", "d")
    msgs = await sub.fetch(10, timeout=30)
    assert [msg.data for msg in msgs] == [b"0", b"1", b"2"]
    await msgs[0].ack()
    await msgs[1].nak()
    await msgs[2].in_progress()
    await msgs[2].term()
    with pytest.raises(nats.errors.MsgAlreadyAckdError):
        await msgs[0].ack()
    [again] = await sub.fetch(1)
    assert (again.data, again.metadata.num_delivered, again.metadata.sequence.stream) == (b"1", 2, 2)
    await again.ack_sync()
    info = await sub.consumer_info()
    assert (info.num_ack_pending, info.config.durable_name, sub.delivered) == (0, "d", 4)
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.05)
    with pytest.raises(js_errors.FetchTimeoutError):
        await sub.fetch(1, timeout=0.2, heartbeat=0.05)
    with pytest.raises(ValueError, match="batch"):
        await sub.fetch(0)


async def test_push_callback_acknowledges_by_itself(js: JetStreamContext) -> None:
    await publish_with_headers(js, 3)
    seen: list[bytes] = []
    done = asyncio.Event()

    async def handler(msg: Msg) -> None:
        seen.append(msg.data)
        if msg.data == b"1":
            await msg.ack()
        if len(seen) == 3:
            done.set()

    sub = await js.subscribe("s.a", durable="d", cb=handler)
    await done.wait()
    await sub.drain()
    assert seen == [b"0", b"1", b"2"]
    while (await js.consumer_info("S", "d")).num_ack_pending:  # the server counts acks in its own time
        pass
    assert (await js.consumer_info("S", "d")).ack_floor.stream_seq == 3


async def test_push_subscription_binds_or_creates(js: JetStreamContext) -> None:
    await publish_with_headers(js, 2)
    first = await js.subscribe("s.a", durable="d")
    assert (await first.next_msg()).data == b"0"
    with pytest.raises(js_errors.Error, match="already bound"):
        await js.subscribe("s.a", durable="d")
    await js.subscribe("s.a", queue="workers")
    assert (await js.consumer_info("S", "workers")).config.deliver_group == "workers"
    with pytest.raises(js_errors.Error, match="deliver group"):
        await js.subscribe("s.a", durable="workers")
    assert (first.pending_msgs, first.delivered) == (1, 2)
    await first.unsubscribe()
    with pytest.raises(nats.errors.BadSubscriptionError):
        await first.unsubscribe()


@pytest.mark.differs("`js.subscribe(queue=...)` from several clients at once")
async def test_queue_subscriptions_begin_together(js: JetStreamContext, nats_server: Server) -> None:
    """Each finds no consumer and creates one; the later one must not take the messages from the first."""
    seen: set[int] = set()
    everybody = asyncio.Event()

    def reader(number: int) -> Callable[[Msg], Awaitable[None]]:
        async def handle(msg: Msg) -> None:
            seen.add(number)
            if len(seen) == 3:
                everybody.set()

        return handle

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(await nats.connect(nats_server.url)) for _ in range(3)]
        await asyncio.gather(
            *(nc.jetstream().subscribe("s.a", queue="w", cb=reader(number)) for number, nc in enumerate(others))
        )
        while not everybody.is_set():
            await publish_with_headers(js, 20)


@pytest.mark.differs("`js.subscribe(config=...)` with a durable name that exists")
@pytest.mark.parametrize("queue", ["workers", None])
async def test_durable_name_of_the_configuration(
    js: JetStreamContext, nc: nats.NATS, nats_server: Server, queue: str | None
) -> None:
    """A worker that is started again reads on, with its newest configuration."""
    for start in range(3):
        config = api.ConsumerConfig(durable_name="d", max_deliver=5 + start)
        sub = await js.subscribe("s.a", queue=queue, config=config)
        await js.publish("s.a", b"%d" % start)
        msg = await sub.next_msg(timeout=5)
        assert msg.data == b"%d" % start
        await msg.ack()
        info = await sub.consumer_info()
        assert (info.name, info.config.max_deliver, info.config.deliver_group) == ("d", 5 + start, queue)
        await nc.close()
        await nc.connect(nats_server.url)


@pytest.mark.differs("`js.subscribe(config=...)` with a durable name that exists")
async def test_durable_name_of_the_configuration_is_shared(js: JetStreamContext) -> None:
    subs = [await js.subscribe("s.a", queue="q", config=api.ConsumerConfig(durable_name="d")) for _ in range(2)]
    await publish_with_headers(js, 20)
    received = await asyncio.gather(*(sub.next_msg(timeout=5) for sub in subs))
    assert all(msg.metadata.consumer == "d" for msg in received)
    with pytest.raises(js_errors.Error, match="with a deliver group q"):
        await js.subscribe("s.a", config=api.ConsumerConfig(durable_name="d"))


@pytest.mark.differs("`unsubscribe(limit=...)` of a push subscription that has received more")
async def test_push_subscription_ends_after_its_limit(js: JetStreamContext) -> None:
    await publish_with_headers(js, 3)
    sub = await js.subscribe("s.a")
    await sub.unsubscribe(limit=2)
    assert [msg.data async for msg in sub.messages] == [b"0", b"1"]


async def test_ordered_consumer_reads_in_order(js: JetStreamContext) -> None:
    await publish_with_headers(js, 3)
    sub = await js.subscribe("s.a", ordered_consumer=True)
    assert [(await sub.next_msg()).data for _ in range(3)] == [b"0", b"1", b"2"]
    assert (await sub.consumer_info()).config.ack_policy == "none"
    await sub.unsubscribe()


@pytest.mark.differs("`publish_async()` of a message that is refused")
async def test_published_futures_are_settled(js: JetStreamContext) -> None:
    futures = [await js.publish_async("s.a", b"%d" % number) for number in range(10)]
    refused = await js.publish_async("s.a", b"", stream="OTHER")
    await js.publish_async_completed()
    assert [(await future).seq for future in futures] == list(range(1, 11))
    assert js.publish_async_pending() == 0
    with pytest.raises(js_errors.APIError):
        await refused


@pytest.mark.differs("Logging")
async def test_unread_future_is_a_line_in_the_log(nc: nats.NATS, caplog: pytest.LogCaptureFixture) -> None:
    js = nc.jetstream(timeout=0.1)
    await nc.subscribe("silent")
    future = await js.publish_async("silent", b"")
    await js.publish_async_completed()
    read = await js.publish_async("silent", b"")
    with pytest.raises(nats.errors.TimeoutError):
        await read
    del future, read
    gc.collect()
    [line] = [one for one in caplog.records if "its future" in one.message]
    assert (line.name, line.exc_info) == ("natsproto", None)
    assert line.message == "publish_async to 'silent' failed, and nobody read its future: nats: timeout"
    assert "never retrieved" not in caplog.text


async def test_bucket_speaks_as_nats_py_does(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B", history=5)
    with pytest.raises(js_errors.NoKeysError):
        await kv.keys()
    assert (await kv.put("eu.a", b"1"), await kv.update("eu.a", b"2", last=1), await kv.create("b", b"3")) == (1, 2, 3)
    with pytest.raises(js_errors.KeyWrongLastSequenceError, match="wrong last sequence: 2"):
        await kv.update("eu.a", b"9", last=1)
    entry = await kv.get("eu.a")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == ("B", "eu.a", b"2", 2)
    assert (await kv.get("eu.a", revision=1)).value == b"1"
    assert (await kv.keys(), await kv.keys(filters=["eu"])) == (["eu.a", "b"], ["eu.a"])
    assert [entry.value for entry in await kv.history("eu.a")] == [b"1", b"2"]
    assert await kv.delete("eu.a")
    with pytest.raises(js_errors.KeyNotFoundError) as caught:
        await kv.get("eu.a")
    assert caught.value.op == "DEL"
    with pytest.raises(js_errors.KeyNotFoundError, match="expected"):
        await kv.get("eu.a", revision=3)
    with pytest.raises(js_errors.InvalidKeyError):
        await kv.put("a b", b"")
    status = await kv.status()
    assert (status.bucket, status.history, status.values) == ("B", 5, 4)
    with pytest.raises(js_errors.BucketNotFoundError):
        await js.key_value("NONE")


async def test_watch_marks_the_end_of_the_beginning(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B")
    empty = await kv.watch("none.*")
    assert await empty.updates() is None
    await kv.put("a", b"1")
    watcher = await kv.watchall()
    first = await watcher.updates()
    assert first is not None
    assert (first.key, first.value, first.operation, await watcher.updates()) == ("a", b"1", None, None)
    await kv.delete("a")
    async for entry in watcher:
        assert entry is not None
        assert (entry.operation, entry.revision) == ("DEL", 2)
        break
    with pytest.raises(nats.errors.TimeoutError):
        await watcher.updates(timeout=0.01)
    await watcher.stop()
    assert [entry async for entry in watcher] == []


@pytest.mark.differs("ObjectStore.put of an ObjectMeta with a link")
async def test_objects_are_put_and_got(js: JetStreamContext, tmp_path: Path) -> None:
    store = await js.create_object_store("O", api.ObjectStoreConfig(description="files"))
    with pytest.raises(js_errors.NotFoundError):
        await store.list()
    content = bytes(range(256)) * 2000
    info = await store.put("big", io.BytesIO(content), api.ObjectMeta(description="all bytes"))
    assert (info.size, info.description, info.is_link(), info.bucket) == (len(content), "all bytes", False, "O")
    result = await store.get("big")
    assert (result.data, result.info.digest) == (content, info.digest)
    with (tmp_path / "big").open("wb") as file:
        await store.get("big", writeinto=file)
    assert (tmp_path / "big").read_bytes() == content
    await store.put("text", "grün")
    assert (await store.get("text")).data == "grün".encode()
    await store.update_meta("text", api.ObjectMeta("text", "changed"))
    assert (await store.get_info("text")).description == "changed"
    await store.delete("text")
    with pytest.raises(js_errors.ObjectNotFoundError):
        await store.get("text")
    assert (await store.get_info("text", show_deleted=True)).deleted
    assert [info.name for info in await store.list(ignore_deletes=True)] == ["big"]
    watcher = await store.watch(ignore_deletes=True)
    seen = await watcher.updates()
    assert seen is not None
    assert (seen.name, await watcher.updates()) == ("big", None)
    await watcher.stop()
    await store.seal()
    assert (await store.status()).sealed
    link = api.ObjectMetaOptions(link=api.ObjectLink("O", "big"))
    with pytest.raises(NotImplementedError, match="add_link"):
        await store.put("link", b"", api.ObjectMeta(options=link))


async def test_start_times_at_the_ends_of_datetime(js: JetStreamContext) -> None:
    await publish_with_headers(js, 3)
    for moment, pending in ((datetime(1600, 1, 1, tzinfo=UTC), 3), (datetime.max, 0), (datetime.min, 3)):
        by_time = api.DeliverPolicy.BY_START_TIME
        config = api.ConsumerConfig(deliver_policy=by_time, opt_start_time=moment, ack_policy=api.AckPolicy.EXPLICIT)
        assert (await js.add_consumer("S", config)).num_pending == pending


async def test_consumer_is_paused_and_reset(js: JetStreamContext) -> None:
    await js.add_consumer("S", durable_name="d", ack_wait=12.5, backoff=[1, 2.5], max_deliver=3)
    info = await js.consumer_info("S", "d")
    assert (info.config.ack_wait, info.config.backoff) == (1, [1, 2.5])
    assert (await js.pause_consumer("S", "d", "2999-01-01T00:00:00Z")).paused
    assert not (await js.resume_consumer("S", "d")).paused
    assert (await js.reset_consumer("S", "d", seq=1)).reset_seq == 1
    assert [info.name for info in await js.consumers_info("S")] == ["d"]
    assert await js.delete_consumer("S", "d")
    assert (await js.account_info()).streams == 1


@pytest.mark.differs("untraced: it compares both packages itself")
@pytest.mark.parametrize("name", ["ConsumerConfig", "StreamConfig", "KeyValueConfig", "ObjectStoreConfig"])
@pytest.mark.parametrize("value", ["unset", None, 0, 1.5])
def test_durations_are_written_as_by_nats_py(name: str, value: Any) -> None:
    theirs = getattr(importlib.import_module("nats.js.api"), name)
    required = {"bucket": "b"} if name == "KeyValueConfig" else {}
    durations = ("ack_wait", "idle_heartbeat", "inactive_threshold", "max_age", "duplicate_window", "ttl")
    fields = {field.name for field in dataclasses.fields(theirs)}
    given = {} if value == "unset" else {duration: value for duration in durations if duration in fields}
    assert getattr(api, name)(**required, **given).as_dict() == theirs(**required, **given).as_dict()


@pytest.mark.differs("Fields of newer servers that nats-py does not know")
async def test_update_keeps_fields_of_newer_servers(js: JetStreamContext, nc: nats.NATS) -> None:
    config = {"durable_name": "d", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "overflow"}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    await nc.request("$JS.API.CONSUMER.CREATE.S.d", body, timeout=5)
    found = (await js.consumer_info("S", "d")).config
    await js.add_consumer("S", found.evolve(description="changed"))
    reply = json.loads((await nc.request("$JS.API.CONSUMER.INFO.S.d", b"", timeout=5)).data)
    assert (reply["config"]["description"], reply["config"]["priority_groups"]) == ("changed", ["g"])
    assert found.evolve(ack_wait=1) == dataclasses.replace(found, ack_wait=1)
