"""Differences of key-value buckets and object stores."""

from __future__ import annotations

import asyncio
from typing import Any

from natsproto.testing import FaultProxy, Server
from tests.compat.differences import shows
from tests.compat.differences.streams import FAST, publish_count
from tests.compat.scenarios import CallbackLog, raised


async def stored_messages(nc: Any, stream: str) -> list[Any]:
    """The messages of a stream."""
    js = nc.jetstream()
    state = (await js.stream_info(stream)).state
    return [await js.get_msg(stream, seq) for seq in range(state.first_seq, state.last_seq + 1)]


@shows(
    "Bucket keys with `validate_keys=False`, and in `purge`, `history` and `watch`", theirs="", ours="InvalidKeyError"
)
async def invalid_key(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="B")
        return await raised(kv.purge("k*"))


@shows(
    "`ObjectStore.put` of more than `pending_size` in an outage", theirs="TimeoutError", ours="OutboundBufferLimitError"
)
async def put_too_much(package: Any, server: Server) -> str:
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        nc = await package.connect(proxy.url, pending_size=10_000, **FAST, **log.callbacks())
        store = await nc.jetstream(timeout=0.2).create_object_store("B")
        proxy.refuse()
        proxy.cut()
        await log.until("disconnected_cb")
        error = await raised(store.put("o", b"x" * 20_000))
        await raised(nc.close())
    return error


@shows("A bucket that was deleted", theirs="KeyNotFoundError", ours="BucketNotFoundError")
async def deleted_bucket(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value(bucket="B")
        await js.delete_key_value("B")
        return await raised(kv.get("k"))


@shows(
    "`update` and `delete(last=...)` with a later revision than the bucket has",
    theirs=("KeyWrongLastSequenceError", False),
    ours=("KeyWrongLastSequenceError", True),
)
async def later_revision(package: Any, server: Server) -> tuple[str, bool]:
    """The error, and whether more than the write is sent until it is raised."""
    async with FaultProxy(server.host, server.port, record=True) as proxy, await package.connect(proxy.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="B")
        await kv.put("k", b"v")
        before = publish_count(proxy)
        error = await raised(kv.update("k", b"w", last=9))
        return error, publish_count(proxy) > before + 1


@shows("`create`, `update` and `delete(last=...)` of a bucket", theirs=False, ours=True)
async def named_write(package: Any, server: Server) -> bool:
    """Whether a write has a header by which it can be found again."""
    async with await package.connect(server.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="B")
        await kv.create("k", b"v")
        return "Natsproto-Write" in ((await stored_messages(nc, "KV_B"))[0].headers or {})


@shows("`ObjectStore.update_meta` with another name", theirs="ObjectAlreadyExists", ours="")
async def rename(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("O")
        await store.put("a", b"x")
        return await raised(store.update_meta("a", package.js.api.ObjectMeta(name="b")))


@shows("Chunks of objects", theirs=False, ours=True)
async def chunk_ids(package: Any, server: Server) -> bool:
    async with await package.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("O")
        await store.put("a", b"x")
        return "Nats-Msg-Id" in ((await stored_messages(nc, "OBJ_O"))[0].headers or {})


@shows("Metadata of objects", theirs=(True, False), ours=(False, True))
async def metadata(package: Any, server: Server) -> tuple[bool, bool]:
    """Whether it has spaces, and whether it is written under an expected sequence."""
    async with await package.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("O")
        await store.put("a", b"x")
        written = (await stored_messages(nc, "OBJ_O"))[1]
        return b", " in written.data, "Nats-Expected-Last-Subject-Sequence" in (written.headers or {})


@shows("ObjectStore.put of an ObjectMeta with a link", theirs="", ours="NotImplementedError")
async def put_link(package: Any, server: Server) -> str:
    api = package.js.api
    async with await package.connect(server.url) as nc:
        store = await nc.jetstream().create_object_store("O")
        options = api.ObjectMetaOptions(max_chunk_size=1, link=api.ObjectLink(bucket="O", name="a"))
        return await raised(store.put("b", b"", meta=api.ObjectMeta(name="b", options=options)))


@shows("`updates()` of a watcher that was stopped", theirs="StopIterSentinel", ours="NoneType")
async def stopped_watcher(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="B")
        watcher = await kv.watchall()
        await watcher.updates()
        await watcher.stop()
        return type(await watcher.updates(timeout=2)).__name__


@shows(
    "`updates()` without a timeout, and loops over a watcher, when the client is closed",
    theirs="waits",
    ours="ConnectionClosedError",
)
async def watch_of_a_closed_client(package: Any, server: Server) -> str:
    nc = await package.connect(server.url)
    watcher = await (await nc.jetstream().create_key_value(bucket="b")).watch("k")
    await watcher.updates()
    waiting = asyncio.create_task(raised(watcher.updates(timeout=None)))
    await nc.close()
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    waiting.cancel()
    return await waiting if done else "waits"
