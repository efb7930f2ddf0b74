"""A cache: the bucket as a mapping in memory."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import sys
from time import perf_counter

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    InvalidSubject,
    LimitReached,
    LocalProtocolError,
    RequestTimeout,
)
from natsproto.jetstream import JetStream
from natsproto.jetstream._publish.headers import ttl_of
from natsproto.jetstream.kv import CacheUpdates, KeyValueCache, Operation
from natsproto.protocol.headers import Headers
from natsproto.testing import Server
from tests.kit.waiting import until

LONG = 20.0


async def test_it_is_complete_when_entered_and_follows(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("eu.de", b"1")
    await kv.put("us.ny", b"2")
    await kv.put("eu.fr", b"3")
    await kv.delete("eu.fr")
    async with kv.cache("eu.>") as cache:
        assert dict(cache) == {"eu.de": b"1"}
        assert ("eu.de" in cache, "us.ny" in cache, cache.get("eu.fr"), len(cache)) == (True, False, None, 1)
        with pytest.raises(KeyError):
            cache["eu.fr"]
        revision = await kv.put("eu.fr", b"4")
        await cache.wait_for(revision, timeout=LONG)
        assert cache["eu.fr"] == b"4"
        assert cache.revision == revision
        entry = cache.entry("eu.fr")
        assert entry is not None
        assert entry.revision == revision
        await cache.wait_for(await kv.purge("eu.de"), timeout=LONG)
        assert cache.entry("eu.de") is None
        with pytest.raises(RequestTimeout, match="revision 99"):
            await cache.wait_for(99, timeout=0.02)
    with pytest.raises(LocalProtocolError, match="left"):
        cache["eu.fr"]


async def test_cache_of_a_deleted_bucket(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    with pytest.raises(LocalProtocolError, match="enter the cache"):
        len(kv.cache())
    async with kv.cache() as cache:
        waiting = asyncio.create_task(cache.wait_for(99))
        await jetstream.delete_key_value("b")
        with pytest.raises(BucketNotFound):
            async with asyncio.timeout(LONG):
                await waiting
        with pytest.raises(BucketNotFound):
            cache["a"]
    with pytest.raises(BucketNotFound):
        async with kv.cache():
            pass


# ---------------------------------------------------------------- readers of its changes

Seen = tuple[str, bytes, Operation]


async def collect_updates(updates: CacheUpdates[bytes], into: list[Seen]) -> None:
    async for entry in updates:
        into.append((entry.key, entry.data, entry.operation))  # noqa: PERF401


async def until_last(seen: list[Seen], last: Seen) -> None:
    await until(lambda: seen[-1:] == [last])


async def test_readers_get_current_entries_and_changes(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b", history=5)
    for key, value in (("eu.fr", b"1"), ("us.ny", b"2"), ("eu.de", b"3"), ("eu.fr", b"4")):
        await kv.put(key, value)
    seen: dict[str, list[Seen]] = {name: [] for name in ("all", "eu.>", "eu.fr", "eu.fr twice")}
    async with asyncio.TaskGroup() as group, kv.cache() as cache:
        for name, into in seen.items():
            keys = () if name == "all" else name.split()[:1]
            group.create_task(collect_updates(cache.updates(*keys), into))
        await asyncio.sleep(0)
        await kv.put("eu.fr", b"5")
        await kv.delete("eu.de")
        await kv.put("eu.it", b"6")
        await kv.purge("eu.fr")
        await until_last(seen["all"], ("eu.fr", b"", Operation.PURGE))
        await until_last(seen["eu.fr"], ("eu.fr", b"", Operation.PURGE))
    put, fr = Operation.PUT, [("eu.fr", b"4", Operation.PUT), ("eu.fr", b"5", Operation.PUT)]
    assert seen["eu.fr"] == seen["eu.fr twice"] == [*fr, ("eu.fr", b"", Operation.PURGE)]
    later = [fr[1], ("eu.de", b"", Operation.DELETE), ("eu.it", b"6", put), ("eu.fr", b"", Operation.PURGE)]
    assert seen["eu.>"] == [("eu.de", b"3", put), fr[0], *later]
    assert seen["all"] == [("us.ny", b"2", put), ("eu.de", b"3", put), fr[0], *later]


async def test_slow_reader_ends_at_the_current_values(jetstream: JetStream, seed: int) -> None:
    """What it leaves out has been replaced by newer entries of the same keys, and the others are not slowed."""
    rng = random.Random(seed)
    kv = await jetstream.create_key_value("b", history=64)  # of 1, the server leaves out what is replaced at once
    async with kv.cache() as cache:
        slow, fast = cache.updates(max_waiting=10), cache.updates()
        entries = aiter(slow)
        every: list[Seen] = []
        reading = asyncio.create_task(collect_updates(fast, every))
        await kv.put("k0", b"first")
        assert (await anext(entries)).data == b"first"
        for number in range(500):
            await kv.put(f"k{rng.randrange(7)}", b"%d" % number)
        await cache.wait_for(await kv.put("end", b""))
        got = []
        async for entry in entries:
            got.append(entry)
            if entry.key == "end":
                break
        assert {entry.key: entry.data for entry in got} == dict(cache)
        assert [entry.revision for entry in got] == sorted(entry.revision for entry in got)
        assert len(got) + slow.skipped == 501
        assert len(got) <= 30
        await until_last(every, ("end", b"", Operation.PUT))
        assert (len(every), fast.skipped) == (502, 0)
        reading.cancel()


async def test_more_keys_than_may_wait_all_arrive(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b", history=64)
    async with kv.cache() as cache:
        updates = cache.updates(max_waiting=1)
        entries = aiter(updates)
        await kv.put("first", b"")
        await anext(entries)
        for round_ in range(3):
            for number in range(50):
                await kv.put(f"k{number}", b"%d" % round_)
        await cache.wait_for(await kv.put("end", b""))
        got = ["k0"]
        while got[-1] != "end":
            got.append((await anext(entries)).key)
        assert set(got) == {f"k{number}" for number in range(50)} | {"end"}
        assert len(got) - 1 + updates.skipped == 151


async def test_ends_of_a_reader(jetstream: JetStream, nats_server: Server) -> None:
    kv = await jetstream.create_key_value("b")
    await kv.put("a", b"1")
    with pytest.raises(LocalProtocolError, match="enter the cache"):
        await anext(aiter(kv.cache().updates()))
    async with kv.cache() as cache:
        reading = asyncio.create_task(collect_updates(cache.updates(), []))
        await asyncio.sleep(0.01)
    async with asyncio.timeout(LONG):
        await reading  # the block was left
    async with natsproto.connect(nats_server.url) as nc, (await nc.jetstream().key_value("b")).cache() as cache:
        reading = asyncio.create_task(collect_updates(cache.updates("a"), []))
        await asyncio.sleep(0.01)
        await nc.close()
        async with asyncio.timeout(LONG):
            await reading
    async with kv.cache() as cache:
        reading = asyncio.create_task(collect_updates(cache.updates(), []))
        await asyncio.sleep(0.01)
        await jetstream.delete_key_value("b")
        with pytest.raises(BucketNotFound):
            async with asyncio.timeout(LONG):
                await reading
        with pytest.raises(BucketNotFound):
            await anext(aiter(cache.updates()))


async def test_refused_updates(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b")
    async with kv.cache("eu.*", "us") as cache:
        with pytest.raises(ConfigError, match=r"the cache has only 'eu\.\*', 'us'"):
            cache.updates("eu.fr", "asia")
        with pytest.raises(InvalidSubject):
            cache.updates("a..b")
        with pytest.raises(ConfigError, match="max_waiting"):
            cache.updates(max_waiting=0)
        with pytest.raises(TypeError, match="async for"):
            await cache.updates()  # type: ignore[misc]
        cache.updates("eu.>")


async def test_left_readers_are_forgotten(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b")
    await kv.put("a", b"1")
    async with kv.cache() as cache:
        for keys in ((), ("a",), ("*", "a")):
            async for _ in cache.updates(*keys):
                break
        task = asyncio.create_task(collect_updates(cache.updates("a"), []))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        gc.collect()
        await asyncio.sleep(0.01)
        assert not cache._audience._by_pattern
        assert not cache._audience._by_subject


async def test_readers_of_a_blocking_client(jetstream: JetStream, nats_server: Server) -> None:
    kv = await jetstream.create_key_value("b")
    await kv.put("a", b"1")

    def work() -> list[bytes]:
        with sync.connect(nats_server.url) as nc, nc.jetstream().key_value("b").cache() as cache:
            got = []
            for entry in cache.updates("a"):
                got.append(entry.data)
                if len(got) == 3:
                    return got
                nc.jetstream().key_value("b").put("a", b"%d" % (len(got) + 1))
        raise AssertionError("ended early")

    assert await asyncio.to_thread(work) == [b"1", b"2", b"3"]


async def test_ten_thousand_readers(jetstream: JetStream) -> None:
    """One consumer, at most 5 KB each, and an update that all read does not hold the loop."""
    kv = await jetstream.create_key_value("b")
    await kv.put("a", b"0")
    counts = [0] * 10_000

    async def reader(cache: KeyValueCache[bytes], number: int) -> None:
        async for _ in cache.updates("a"):
            counts[number] += 1

    async with kv.cache() as cache:
        gc.collect()
        before = sys.getallocatedblocks()
        tasks = [asyncio.create_task(reader(cache, number)) for number in range(10_000)]
        await until(lambda: sum(counts) == 10_000)
        assert (sys.getallocatedblocks() - before) / 10_000 < 40
        assert [consumer async for consumer in (await jetstream.stream("KV_b")).consumers()] != []
        longest, last = 0.0, perf_counter()
        await kv.put("a", b"1")
        while sum(counts) < 20_000:
            await asyncio.sleep(0)
            now = perf_counter()
            longest, last = max(longest, now - last), now
        assert longest < 0.1, "20 ms on an idle machine"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_limit_of_consumers_names_the_cache(jetstream: JetStream) -> None:
    await jetstream.create_stream("KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=1, max_consumers=1)
    kv = await jetstream.key_value("b")
    async with kv.cache() as cache:
        with pytest.raises(LimitReached, match=r"maximum consumers .*kv\.cache\(\)\.updates\(\)"):
            async with kv.watch("a") as watcher:
                await watcher.next(LONG)
        await kv.put("a", b"1")
        async for entry in cache.updates("a"):
            assert entry.value == b"1"
            break


async def test_many_patterns_do_not_hold_the_loop(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b")
    async with kv.cache() as cache:
        tasks = [
            asyncio.create_task(collect_updates(cache.updates(f"other.{number}.*"), [])) for number in range(5_000)
        ]
        await asyncio.sleep(0)
        writer = cache._watcher._stream.api.connection
        for number in range(200):
            writer.publish_nowait(f"$KV.b.a.{number}", b"x")
        longest, last = 0.0, perf_counter()
        while cache.revision < 200:
            await asyncio.sleep(0)
            now = perf_counter()
            longest, last = max(longest, now - last), now
        assert longest < 0.2, "one entry is matched with 5,000 patterns in 5 ms, 200 in a row were not"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_limit_returns_when_a_reader_has_caught_up(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("b")
    async with kv.cache() as cache:
        updates = cache.updates(max_waiting=4)
        entries = aiter(updates)
        await kv.put("first", b"")
        await anext(entries)
        for number in range(40):
            await kv.put(f"k{number}", b"")
        await cache.wait_for(await kv.put("end", b""))
        await until(lambda: cache.revision == 42)
        while (await anext(entries)).key != "end":
            pass
        before = updates.skipped
        for number in range(20):
            last = await kv.put("one", b"%d" % number)
        await cache.wait_for(last)
        await asyncio.sleep(0.01)
        assert (await anext(entries)).key == "one"
        while (await anext(entries)).data != b"19":
            pass
        await kv.put("more", b"")
        await anext(entries)
        assert updates.skipped - before >= 10


async def test_expired_keys_are_not_in_it(jetstream: JetStream) -> None:
    silent = await jetstream.create_key_value(bucket="silent", ttl=1)  # the server sends no marker
    await silent.put("a", b"old")
    own = await jetstream.create_key_value(bucket="own", limit_marker_ttl=60)
    async with silent.cache() as cache, own.cache() as marked:
        await own.create("short", b"1", ttl=1)
        await own.create("long", b"1", ttl=3600)
        revision = await own.put("forever", b"1")
        await marked.wait_for(revision, timeout=LONG)
        await until(lambda: "a" not in cache, LONG)
        renewed = await silent.put("a", b"new")
        await cache.wait_for(renewed, timeout=LONG)
        assert cache["a"] == b"new"
        await until(lambda: "short" not in marked, LONG)
        assert set(marked) == {"long", "forever"}
        with pytest.raises(KeyError):
            marked["short"]


def test_lifetimes_of_entries() -> None:
    for text, expected in [
        ("5", 5.0),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("200ms", 0.2),
        ("never", math.inf),
        ("", None),
        ("soon", None),
        ("5x", None),
    ]:
        assert ttl_of(Headers({"Nats-TTL": text})) == expected
    assert ttl_of(Headers()) is None
