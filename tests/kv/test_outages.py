"""Buckets while servers are killed, restarted and change their leaders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import BucketNotFound, LockLost, NatsError, PublishUncertain, RequestTimeout, WrongRevision
from natsproto.jetstream.kv import KeyValue, KeyValueCache, KeyValueEntry
from natsproto.jetstream.kv._watch import KeyWatcher
from natsproto.testing import Direction, FaultProxy, Server, run_cluster, run_server
from tests.kit.elections import another_leader

LONG = 40.0


@pytest.fixture
async def outage() -> AsyncIterator[tuple[Server, Client]]:
    """A server to be killed, and a client that comes back soon."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url, reconnect_wait=0.05) as nc:
        yield server, nc


async def written(kv: KeyValue, numbers: range, keys: int = 3) -> list[int]:
    """Puts numbers until each is confirmed; the revisions that were."""
    revisions: list[int] = []
    for number in numbers:
        while True:
            try:
                revisions.append(await kv.put(f"k.{number % keys}", b"%d" % number, timeout=5))
                break
            except NatsError:
                await asyncio.sleep(0.02)
    return revisions


async def read_until(watcher: KeyWatcher, revision: int) -> list[int]:
    """Reads up to a revision; all that came."""
    seen: list[int] = []
    async with asyncio.timeout(LONG):
        async for entry in watcher:
            seen.append(entry.revision)
            if entry.revision >= revision:
                return seen
    raise AssertionError("the watch has ended")


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("operation", ["update", "create", "modify"])
async def test_guarded_write_survives_a_lost_connection(operation: str, stored: bool) -> None:
    """Whether the server has the write or not, it is made once, and its caller gets its revision."""
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(server.url) as witness,
    ):
        kv = await nc.jetstream(timeout=LONG).create_key_value("b", history=5)
        seen = await witness.jetstream().key_value("b")
        revision = 0 if operation == "create" else await kv.put("k", b"1")

        async def write() -> int:
            if operation == "update":
                return await kv.update("k", b"2", revision)
            if operation == "create":
                return await kv.create("k", b"2")
            return (await kv.modify("k", lambda value: b"%d" % (int(value or b"") + 1))).revision

        proxy.stall(Direction.TO_CLIENT if stored else Direction.TO_SERVER)
        writing = asyncio.create_task(write())
        if stored and operation != "modify":  # of which the read is lost, too
            async with asyncio.timeout(LONG), seen.watch("k") as watcher:
                while (await watcher.next()).value != b"2":
                    pass
        await asyncio.sleep(0)
        proxy.cut()
        proxy.heal()
        assert await writing == revision + 1
        assert [(entry.value, entry.revision) for entry in await kv.history("k")][-1] == (b"2", revision + 1)


@pytest.mark.parametrize("operation", ["update", "create"])
async def test_guarded_write_names_a_deleted_bucket(operation: str) -> None:
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
        natsproto.connect(server.url) as other,
    ):
        kv = await nc.jetstream().create_key_value("b")
        proxy.stall(Direction.TO_SERVER)
        writing = asyncio.create_task(
            kv.update("k", b"1", 0, timeout=1) if operation == "update" else kv.create("k", b"1", timeout=1)
        )
        await other.jetstream().delete_key_value("b")
        proxy.cut()
        proxy.heal()
        with pytest.raises(BucketNotFound, match="'b'"):
            await writing


async def test_a_read_that_asks_twice_keeps_its_timeout() -> None:
    """A direct get that nobody serves is followed by a request to the leader, in the time that is left."""
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        js = nc.jetstream()
        kv = await js.create_key_value("b")
        await kv.put("k", b"1")
        stream = await js.stream("KV_b")
        await js.update_stream("KV_b", allow_direct=False)
        proxy.delay(0.4)
        with pytest.raises(RequestTimeout):
            await kv.get("k", timeout=1)
        with pytest.raises(RequestTimeout):
            await stream.get_last_message("$KV.b.k", direct=True, timeout=1)


async def test_uncertain_write_says_what_to_do(outage: tuple[Server, Client]) -> None:
    server, nc = outage
    kv = await nc.jetstream(timeout=LONG).create_key_value("b")
    server.freeze()
    try:
        writing = asyncio.create_task(kv.put("k", b"1"))
        await asyncio.sleep(0)
    finally:
        server.kill()
    with pytest.raises(PublishUncertain, match="read the key, and write again if it does not have this value") as info:
        await writing
    assert "msg_id" not in str(info.value)


async def test_a_watch_misses_nothing_over_a_killed_server(outage: tuple[Server, Client]) -> None:
    server, nc = outage
    kv = await nc.jetstream().create_key_value(bucket="b", history=64)
    before = await written(kv, range(20))
    async with kv.watch(include_history=True) as watcher, kv.watch() as idle:
        seen = await read_until(watcher, before[-1])
        await idle.ready()
        for _ in range(2):
            server.kill()
            writing = asyncio.create_task(written(kv, range(20, 40)))
            await server.restart()
            revisions = await writing
            seen += await read_until(watcher, revisions[-1])
        assert set(before) | set(revisions) <= set(seen)
        assert all(earlier < later for earlier, later in pairwise(seen))
        assert seen == [*range(1, seen[-1] + 1)]
        assert [r for r in await read_until(idle, seen[-1]) if r > before[-1]] == [r for r in seen if r > before[-1]]


async def test_watch_without_entries_survives_an_outage(outage: tuple[Server, Client]) -> None:
    server, nc = outage
    kv = await nc.jetstream().create_key_value(bucket="b", history=5)
    await kv.put("old", b"0")
    async with kv.watch("new.>") as watcher, kv.watch(updates_only=True) as updates:
        await watcher.ready()
        await updates.ready()
        server.kill()
        await server.restart()
        await written(kv, range(1))
        revision = await kv.put("new.a", b"1")
        assert await read_until(watcher, revision) == [revision]
        assert await read_until(updates, revision) == [*range(2, revision + 1)]


@pytest.mark.slow
async def test_cache_and_lock_survive_a_short_outage(outage: tuple[Server, Client]) -> None:
    server, nc = outage
    kv = await nc.jetstream().create_key_value(bucket="b", limit_marker_ttl=1)
    await kv.put("a", b"1")
    async with kv.cache() as cache, kv.lock("lock", ttl=30) as lock:
        server.kill()
        await server.restart()
        (revision,) = await written(kv, range(1))
        await cache.wait_for(revision, timeout=LONG)
        assert (cache["a"], cache["k.0"]) == (b"1", b"0")
        assert lock.is_held
        assert await lock.put("guarded", b"1") > revision


@pytest.mark.slow
async def test_lock_is_lost_in_a_long_outage(outage: tuple[Server, Client]) -> None:
    server, nc = outage
    kv = await nc.jetstream().create_key_value(bucket="b", limit_marker_ttl=1)

    async def work() -> None:
        async with asyncio.timeout(LONG), kv.lock("lock", ttl=1):
            server.kill()
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        await work()
    await server.restart()
    async with asyncio.timeout(LONG), kv.lock("lock") as lock:
        assert lock.is_held


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("more", [False, True], ids=["with less in it", "with more in it"])
async def test_watch_ends_when_the_bucket_is_made_again(more: bool) -> None:
    async with (
        run_server(jetstream=True) as server,
        natsproto.connect(server.url) as other,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.05) as nc,
    ):
        theirs = await other.jetstream().create_key_value(bucket="b", history=10)
        await written(theirs, range(10))
        ours = await nc.jetstream().key_value("b", bind=True)  # nobody has told it when the bucket was made
        async with ours.watch() as watcher, ours.cache() as cache:
            await watcher.ready()
            proxy.refuse()
            proxy.cut()
            await other.jetstream().delete_key_value("b")
            theirs = await other.jetstream().create_key_value(bucket="b", history=10)
            await written(theirs, range(20 if more else 1))
            await proxy.allow()
            with pytest.raises(BucketNotFound):
                await read_until(watcher, 100)
            with pytest.raises(BucketNotFound):
                await cache.wait_for(100, timeout=LONG)
            with pytest.raises(BucketNotFound):
                cache["k.0"]


async def test_watch_ends_when_a_memory_bucket_is_lost() -> None:
    async with run_cluster(jetstream=True) as cluster, natsproto.connect(cluster.urls, reconnect_wait=0.05) as other:
        await other.jetstream().account_info()  # by then every node knows where answers go; the first got lost
        theirs = await other.jetstream().create_key_value(bucket="b", storage="memory", history=10)
        last = (await written(theirs, range(10)))[-1]
        status = await theirs.status()
        assert status.stream.cluster is not None
        home = next(server for server in cluster.servers if server.name == status.stream.cluster.leader)
        async with natsproto.connect(home.url, reconnect_wait=0.05) as nc:
            ours = await nc.jetstream().key_value("b")
            async with ours.watch() as watcher:
                await read_until(watcher, last)
                home.kill()
                await home.restart()  # the cluster still knows of the bucket, and begins to fill it anew
                assert (await written(theirs, range(1)))[0] < last
                with pytest.raises(BucketNotFound):
                    await read_until(watcher, last + 1)


async def test_a_replicated_bucket_over_elections() -> None:
    async with run_cluster(3, jetstream=True) as cluster, natsproto.connect(cluster.urls, reconnect_wait=0.05) as nc:
        js = nc.jetstream()
        await js.account_info()  # as above
        kv = await js.create_key_value(bucket="b", num_replicas=3, history=64, limit_marker_ttl=1, allow_atomic=True)
        first = await kv.create("a", b"1")
        await kv.update("a", b"2", first)
        with pytest.raises(WrongRevision) as lost:
            await kv.update("a", b"x", first)
        assert (lost.value.expected, lost.value.actual) == (first, first + 1)
        async with kv.watch(include_history=True) as watcher, kv.lock("lock", ttl=60) as lock:
            seen = await read_until(watcher, lock.token)
            for index in range(3):
                writing = asyncio.create_task(written(kv, range(index * 20, index * 20 + 20)))
                await another_leader(js, "KV_b")
                revisions = await writing
                seen += await read_until(watcher, revisions[-1])
                assert set(revisions) <= set(seen)
            assert all(earlier < later for earlier, later in pairwise(seen))
            assert await lock.put("guarded", b"1") > 0
            async with kv.atomic() as batch:
                await batch.put("x", b"1")
                await batch.create("y", b"1")
            revision = batch.revisions["y"]
            assert (await read_until(watcher, revision))[-1] == revision


@pytest.mark.slow
async def test_readers_of_a_cache_over_outages_and_elections(seed: int) -> None:
    """Fifty readers of one watch: none misses or doubles a revision of its keys."""
    rng = random.Random(seed)
    async with run_cluster(3) as cluster, natsproto.connect(cluster.urls, reconnect_wait=0.05) as nc:
        kv = await nc.jetstream().create_key_value("b", history=64, num_replicas=3)
        seen: list[list[KeyValueEntry]] = [[] for _ in range(50)]
        filters = [rng.choice([(), ("k.*",), ("k.0",), ("k.1", "k.2")]) for _ in seen]

        async def read(cache: KeyValueCache, number: int) -> None:
            async for entry in cache.updates(*filters[number], max_waiting=10_000):
                seen[number].append(entry)

        async with asyncio.TaskGroup() as group, kv.cache() as cache:
            for number in range(50):
                group.create_task(read(cache, number))
            revisions: list[int] = []
            for disturb in rng.sample(["leader", "reconnect", "kill"], 3):
                writing = asyncio.create_task(written(kv, range(30)))
                await asyncio.sleep(rng.uniform(0, 0.1))
                if disturb == "leader":
                    await another_leader(nc.jetstream(), "KV_b")
                elif disturb == "reconnect":
                    await nc.reconnect()
                else:
                    server = next((one for one in cluster.servers if one.url == nc.connected_url), cluster.servers[0])
                    server.kill()
                    await server.restart()
                revisions += await writing
            revisions += await written(kv, range(3))
            await cache.wait_for(revisions[-1], timeout=LONG)
            await asyncio.sleep(0.05)
        whole = {entry.revision: entry.key for entry in seen[filters.index(())]} if () in filters else {}
        for number, entries in enumerate(seen):
            got = [entry.revision for entry in entries]
            assert got == sorted(set(got))
            keys = {"k.0", "k.1", "k.2"} if not filters[number] or "k.*" in filters[number] else set(filters[number])
            assert {entry.key for entry in entries} <= keys
            assert {revision for revision, key in whole.items() if key in keys} <= set(got)
            if len(keys) == 3:
                assert set(revisions) <= set(got)
