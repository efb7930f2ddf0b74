"""Watching a bucket on a real server."""

from __future__ import annotations

import asyncio
import json
from itertools import chain

import pytest

import natsproto
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    ConnectionClosed,
    InvalidSubject,
    LocalProtocolError,
    NatsError,
    RequestTimeout,
    SubscriptionClosed,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.kv._entry import KeyValueEntry
from natsproto.jetstream.kv._watch import KeyWatcher
from natsproto.testing import run_server

LONG = 20.0


async def take(watcher: KeyWatcher, count: int) -> list[tuple[str, bytes, str]]:
    return [as_tuple(await watcher.next(LONG)) for _ in range(count)]


def as_tuple(entry: KeyValueEntry) -> tuple[str, bytes, str]:
    return entry.key, entry.value, entry.operation


async def test_watch_of_an_empty_bucket_is_ready_at_once(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=5)
    async with kv.watch() as watcher:
        async with asyncio.timeout(LONG):
            await watcher.ready()
        assert watcher.caught_up
        await kv.put("a", b"1")
        await kv.put("a", b"2")
        await kv.delete("a")
        assert await take(watcher, 3) == [("a", b"1", "PUT"), ("a", b"2", "PUT"), ("a", b"", "DEL")]
        await kv.purge("a")  # takes away what was not told yet
        assert await take(watcher, 1) == [("a", b"", "PURGE")]
        with pytest.raises(RequestTimeout):
            await watcher.next(0.05)


async def test_a_bucket_of_small_values_is_read_far_ahead(nats_client: natsproto.Client, jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    async with jetstream.publisher() as publisher:
        for number in range(3000):
            await publisher.publish(f"$KV.b.{number}", b"x" * 100)
    async with nats_client.subscribe("$JS.API.CONSUMER.MSG.NEXT.KV_b.*") as pulled:
        await nats_client.flush()
        async with kv.watch() as watcher:
            assert [entry.key async for entry in watcher.initial()] == [str(number) for number in range(3000)]
        await nats_client.flush()
        pulls = [json.loads(message.data)["batch"] for message in await pulled._read_batch()]
    assert pulls[0] == 500
    assert max(pulls) > 3000


async def test_the_newest_entries_come_first(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=5)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4")):
        await kv.put(key, value)
    await kv.delete("c")
    async with kv.watch() as watcher:
        initial = [as_tuple(entry) async for entry in watcher.initial()]
        assert initial == [("b", b"2", "PUT"), ("a", b"3", "PUT"), ("c", b"", "DEL")]
        assert watcher.caught_up
        await kv.put("c", b"5")
        assert await take(watcher, 1) == [("c", b"5", "PUT")]


async def test_what_is_watched_can_be_chosen(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=5)
    for key, value in (("eu.de", b"1"), ("us.ny", b"2"), ("eu.de", b"3"), ("asia.in", b"4")):
        await kv.put(key, value)
    await kv.delete("us.ny")

    async def seen(watcher: KeyWatcher) -> list[tuple[str, bytes, str]]:
        async with watcher:
            return [as_tuple(entry) async for entry in watcher.initial()]

    assert await seen(kv.watch("eu.>")) == [("eu.de", b"3", "PUT")]
    assert await seen(kv.watch("eu.>", "us.*")) == [("eu.de", b"3", "PUT"), ("us.ny", b"", "DEL")]
    assert await seen(kv.watch("eu.*", "eu.de", "*.de", "eu.>", "eu.*")) == [("eu.de", b"3", "PUT")]
    assert await seen(kv.watch("eu.>", include_history=True)) == [("eu.de", b"1", "PUT"), ("eu.de", b"3", "PUT")]
    assert await seen(kv.watch(ignore_deletes=True)) == [("eu.de", b"3", "PUT"), ("asia.in", b"4", "PUT")]
    assert await seen(kv.watch("eu.>", meta_only=True)) == [("eu.de", b"", "PUT")]
    assert await seen(kv.watch(resume_from=4)) == [("asia.in", b"4", "PUT"), ("us.ny", b"", "DEL")]
    assert await seen(kv.watch(updates_only=True)) == []


async def test_updates_only_tells_what_comes_after_ready(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    async with kv.watch(updates_only=True) as watcher:
        await watcher.ready()
        await kv.put("a", b"2")
        assert await take(watcher, 1) == [("a", b"2", "PUT")]


async def test_ready_holds_however_many_values_there_are(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    async with jetstream.publisher() as publisher:
        for number in range(3000):
            await publisher.publish(f"$KV.b.k.{number}", b"%d" % number)
    async with kv.watch() as watcher:
        async with asyncio.timeout(LONG):
            await watcher.ready()
        assert not watcher.caught_up
        assert [entry.key async for entry in watcher.initial()] == [f"k.{number}" for number in range(3000)]


async def test_watch_with_incomplete_initial_values() -> None:
    async with run_server(jetstream=True) as server:
        nc = await natsproto.connect(server.url)
        kv = await nc.jetstream().create_key_value(bucket="b")
        for key in ("a", "b", "c"):
            await kv.put(key, b"1")
        async with kv.watch() as watcher:
            await nc.close()
            with pytest.raises(SubscriptionClosed):
                [entry async for entry in watcher.initial()]
        with pytest.raises(NatsError):
            [key async for key in kv.keys(">")]
        with pytest.raises(ConnectionClosed):
            await kv.watch().__aenter__()


async def test_watch_ends_with_a_client_closed_in_an_outage() -> None:
    async with run_server(jetstream=True) as server:
        nc = await natsproto.connect(server.url, reconnect_wait=0.01)
        kv = await nc.jetstream().create_key_value(bucket="b")
        async with kv.watch() as watcher:
            await watcher.ready()
            server.kill()
            async with asyncio.timeout(LONG):
                await nc.close()
                assert [entry async for entry in watcher] == []


async def test_watch_ends_with_an_error_when_the_bucket_does(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    async with kv.watch() as watcher:
        assert await take(watcher, 1) == [("a", b"1", "PUT")]
        await jetstream.delete_key_value("b")
        with pytest.raises(BucketNotFound, match="'b'"):
            await watcher.next(LONG)
    async with kv.watch() as watcher:
        with pytest.raises(BucketNotFound):
            await watcher.ready()


async def test_watch_with_several_readers(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=20)
    await kv.put("old", b"0")
    watcher, seen, all_came = kv.watch(), list[list[int]](), asyncio.Event()

    def saw(share: list[int], *revisions: int) -> None:
        share += revisions
        if sum(map(len, seen)) >= 201:
            all_came.set()

    async def each(share: list[int]) -> None:
        async for entry in watcher:
            saw(share, entry.revision)
            await asyncio.sleep(0)  # somebody else's turn

    async def all_there_is(share: list[int]) -> None:
        async for batch in watcher.batches():
            saw(share, *(entry.revision for entry in batch))
            await asyncio.sleep(0)

    async def one_by_one(share: list[int]) -> None:
        while True:
            saw(share, (await watcher.next(LONG)).revision)

    async with asyncio.timeout(LONG), watcher:
        readers: list[asyncio.Task[None]] = []
        for read in (each, each, all_there_is, one_by_one):
            seen.append([])
            readers.append(asyncio.create_task(read(seen[-1])))
        await watcher.ready()
        for _ in range(10):
            await asyncio.gather(*(kv.put(f"k{number}", b"1") for number in range(20)))
        await all_came.wait()
        await jetstream.delete_key_value("b")
        ends = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(end) for end in ends] == 4 * [BucketNotFound]
    assert sorted(chain.from_iterable(seen)) == list(range(1, 202))
    assert all(share == sorted(share) for share in seen)


async def test_wrong_watches_are_refused_at_once(jetstream: JetStream) -> None:
    kv = await jetstream.key_value("b", bind=True)
    for pattern in ("", "a..b", ".a", "a.", ">.a", "a.>.b", "a b", "a\n", "ä.*", "a*"):
        with pytest.raises(InvalidSubject, match="filter"):
            kv.watch(pattern)
    with pytest.raises(ConfigError, match="updates_only"):
        kv.watch(updates_only=True, resume_from=3)
    with pytest.raises(ConfigError, match="updates_only"):
        kv.watch(updates_only=True, include_history=True)
    with pytest.raises(ConfigError, match="start_seq"):
        kv.watch(resume_from=0)
    with pytest.raises(LocalProtocolError, match="enter the watch"):
        await kv.watch().next()
