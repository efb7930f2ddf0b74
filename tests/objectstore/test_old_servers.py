"""Object stores on every server in use: all of it works, and fast ingest is refused by name where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from natsproto import Client
from natsproto.errors import StreamProtected
from tests.kit.servers import SERIES, client_of, works_since
from tests.objectstore.helpers import CHUNK, cleanups_ended, content, holds_only, listed_names, read_object


@pytest.fixture(params=SERIES)
async def nc(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with client_of(request.param) as client:
        yield client


async def test_objects_are_kept_on_every_server(nc: Client) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(bucket="f", compression=True, metadata={"a": "b"})
    data = content(5 * CHUNK + 1)
    for size in (0, 1, CHUNK):
        await store.put("a b/ü", data[:size])
        assert await store.get_bytes("a b/ü") == data[:size]
    info = await store.put("a b/ü", data, description="d", metadata={"x": "y"}, headers={"K": "v"})
    assert (info.chunks, await store.get_bytes("a b/ü")) == (6, data)
    assert await read_object(store.get("a b/ü", offset=200_000, length=50_000)) == data[200_000:250_000]
    await store.add_link("link", "a b/ü")
    await store.add_bucket_link("bucket", "other")
    assert await store.get_bytes("link") == data
    await store.update_meta("a b/ü", rename="c")
    await store.add_link("link", "c")
    assert await listed_names(store) == ["bucket", "c", "link"]
    async with store.watch() as watcher:
        await watcher.ready()
        assert [(await watcher.next(5)).name for _ in range(3)] == ["bucket", "c", "link"]
        await store.delete("bucket")
        assert (await watcher.next(5)).deleted
    await cleanups_ended(store)
    await holds_only(store, ["c"])
    assert [name async for name in js.object_store_names()] == ["f"]
    assert (await store.seal()).sealed
    with pytest.raises(StreamProtected):
        await store.put("d", b"")
    assert await store.get_bytes("link") == data


async def test_fast_ingest_is_used_or_refused(nc: Client) -> None:
    js = nc.jetstream()
    await js.create_object_store(bucket="plain")
    data = content(20 * CHUNK)
    if await works_since(nc, (2, 14), js.create_object_store(bucket="fast", allow_batched=True)):
        fast = await js.object_store("fast")
        await fast.put("a", data)
        assert await fast.get_bytes("a") == data
    else:
        await works_since(nc, (2, 14), js.update_object_store(bucket="plain", allow_batched=True))
        assert [name async for name in js.object_store_names()] == ["plain"]
