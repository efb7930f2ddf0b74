"""Buckets on every server in use: what it can do works, what it cannot is refused by name before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from natsproto import Client
from natsproto.errors import (
    BatchRefused,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    LockLost,
    TtlRefused,
    UnsupportedByServer,
    WrongRevision,
)
from natsproto.jetstream import StreamSource
from natsproto.jetstream.kv import KeyValue
from tests.kit.contents import all_keys
from tests.kit.servers import SERIES, client_of, level, works_since


@pytest.fixture(params=SERIES)
async def nc(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with client_of(request.param) as client:
        yield client


async def put_all(kv: KeyValue, *names: str, update: str = "") -> None:
    async with kv.atomic() as batch:
        for name in names:
            await batch.put(name, b"new")
        if update:
            await batch.update(update, b"new", 2)


async def test_single_keys_on_every_server(nc: Client) -> None:
    js = nc.jetstream()
    kv = await js.create_key_value(
        bucket="b", history=5, ttl=3600, compression=True, max_value_size=100, metadata={"a": "b"}
    )
    assert (await kv.put("a.b", b"1"), await kv.create("c", b"2"), await kv.update("c", b"3", 2)) == (1, 2, 3)
    for direct in (True, False):
        entry = await kv.get("c", direct=direct)
        assert (entry.key, entry.value, entry.revision) == ("c", b"3", 3)
        assert (await kv.get("c", revision=2, direct=direct)).value == b"2"
        with pytest.raises(KeyNotFound):
            await kv.get("d", direct=direct)
    with pytest.raises(KeyExists):
        await kv.create("c", b"4")
    with pytest.raises(WrongRevision, match="it is 3"):
        await kv.update("c", b"4", 2)
    async with kv.watch("c", "a.>") as watcher, kv.watch(updates_only=True, meta_only=True) as updates:
        assert [entry.revision async for entry in watcher.initial()] == [1, 3]
        await updates.ready()
        assert await kv.delete("c", revision=3) == 4
        assert ((await watcher.next(5)).operation, (await updates.next(5)).revision) == ("DEL", 4)
    with pytest.raises(KeyDeleted):
        await kv.get("c")
    assert [entry.revision for entry in await kv.history("c")] == [2, 3, 4]
    assert await kv.create("c", b"5") == 5
    assert await kv.purge("c") == 6
    assert [entry.operation for entry in await kv.history("c")] == ["PURGE"]
    async with kv.watch(include_history=True) as watcher:
        assert [entry.revision async for entry in watcher.initial()] == [1, 6]
    async with kv.watch(resume_from=2, ignore_deletes=True) as watcher:
        assert [entry.revision async for entry in watcher.initial()] == []
    assert await all_keys(kv) == ["a.b"] == await all_keys(kv, "a.*", "x")
    assert await kv.purge_deletes(older_than=0) == 1
    status = await kv.status()
    assert (status.values, status.history, status.ttl, status.is_compressed) == (1, 5, 3600, True)
    async with kv.cache() as cache:
        await cache.wait_for(await kv.put("z", b"9"))
        assert dict(cache) == {"a.b": b"1", "z": b"9"}
    assert [name async for name in js.key_value_names()] == ["b"]
    await js.update_key_value(status.config.replace(history=2))
    await js.delete_key_value("b")


async def test_mirrors_and_sources_on_every_server(nc: Client) -> None:
    js = nc.jetstream()
    origin = await js.create_key_value(bucket="origin")
    mirror = await js.create_key_value(bucket="mirror", mirror=StreamSource(name="origin"))
    both = await js.create_key_value(bucket="both", sources=[StreamSource(name="origin")])
    await mirror.put("a", b"1")
    assert (await origin.get("a")).value == b"1"
    for copy in (mirror, both):
        async with copy.watch() as watcher:
            entry = await watcher.next(20)
            assert (entry.key, entry.value) == ("a", b"1")


async def test_a_time_to_live_is_kept_or_refused(nc: Client) -> None:
    kv = await nc.jetstream().create_key_value(bucket="plain")
    revision = await kv.put("there", b"1")
    for call in (
        kv.put("a", b"1", ttl=1),
        kv.create("a", b"1", ttl=1),
        kv.update("there", b"2", revision, ttl=1),
        kv.purge("there", ttl=1),
        kv.lock("a").acquire(),
    ):
        # A server that knows of it knows as well that this bucket has none.
        with pytest.raises(TtlRefused if level(nc) >= (2, 11) else UnsupportedByServer, match=r"marker_ttl|2\.11"):
            await call
    assert [(entry.key, entry.value) for entry in await kv.history("there")] == [("there", b"1")]
    assert await kv.history("a") == []
    for change in (nc.jetstream().create_key_value, nc.jetstream().create_or_update_key_value):
        await works_since(nc, (2, 11), change(bucket="timed", limit_marker_ttl=1))
    names = [name async for name in nc.jetstream().key_value_names()]
    assert names == (["plain", "timed"] if level(nc) >= (2, 11) else ["plain"])
    if "timed" not in names:
        return
    kv = await nc.jetstream().key_value("timed")
    async with kv.watch("a") as watcher, asyncio.timeout(20):
        await kv.put("a", b"1", ttl=1)
        assert [(await watcher.next()).operation for _ in range(2)] == ["PUT", "PURGE"]
    async with kv.lock("lock", ttl=5) as lock:
        await lock.put("guarded", b"1")
    lost = kv.lock("lock", ttl=5)
    await lost.acquire()
    await kv.put("lock", b"somebody else")
    with pytest.raises(LockLost):
        await lost.put("guarded", b"2")
    assert (await kv.get("guarded")).value == b"1"


async def test_several_keys_at_once_or_not_at_all(nc: Client) -> None:
    js = nc.jetstream()
    kv = await js.create_key_value(bucket="plain", history=5)
    for number in range(4):
        await kv.put(f"k.{number % 2}", b"%d" % number)
    if await works_since(nc, (2, 11), kv.get_many(["k.0"])):
        assert {key: entry.value for key, entry in (await kv.get_many(["k.*"])).items()} == {"k.0": b"2", "k.1": b"3"}
        assert list(await kv.get_many(["k.*"], up_to_revision=1)) == ["k.0"]
    with pytest.raises(
        BatchRefused if level(nc) >= (2, 12) else UnsupportedByServer, match=r"disabled|2\.12 is needed"
    ):
        await put_all(kv, "k.0", "k.1")
    assert (await kv.status()).last_revision == 4
    if not await works_since(nc, (2, 12), js.create_key_value(bucket="both", allow_atomic=True)):
        await works_since(nc, (2, 12), js.update_key_value(bucket="plain", history=5, allow_atomic=True))
        assert [name async for name in js.key_value_names()] == ["plain"]
        return
    kv = await js.key_value("both")
    async with kv.atomic() as batch:
        await batch.create("a", b"1")
        await batch.put("b", b"2")
        await batch.delete("c")
        await batch.purge("d")
    assert batch.revisions == {"a": 1, "b": 2, "c": 3, "d": 4}
    with pytest.raises(WrongRevision, match="it is 1"):
        await put_all(kv, "b", update="a")
    assert (await kv.get("b")).value == b"2"
