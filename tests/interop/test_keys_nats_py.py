"""Buckets of natsproto and of nats-py are the same buckets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import nats
import nats.js.errors
import pytest
from nats.js.api import KeyValueConfig as TheirConfig

from natsproto.errors import KeyDeleted, KeyExists, WrongRevision
from natsproto.jetstream._context import JetStream
from natsproto.testing import Server

VALUE = bytes(range(256))

T = TypeVar("T")


async def read_all(read: Callable[[], Awaitable[list[T]]], count: int) -> list[T]:
    """As nats-py reads it; again if entries came before the reply that counts them, which it takes for the end."""
    found: list[T] = []
    for _ in range(20):
        try:
            found = await read()
        except nats.js.errors.NoKeysError:
            continue
        if len(found) == count:
            break
    return found


async def test_nats_py_reads_what_we_write(nats_server: Server, jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="ours", history=5, ttl=3600, max_value_size=1000)
    await kv.put("a/b=c_d-1.x", VALUE)
    await kv.create("created", b"1")
    await kv.update("created", b"2", 2)
    await kv.put("gone", b"1")
    await kv.delete("gone")
    await kv.put("purged", b"1")
    await kv.purge("purged")
    nc = await nats.connect(nats_server.url)
    try:
        theirs = await nc.jetstream().key_value("ours")
        entry = await theirs.get("a/b=c_d-1.x")
        assert (entry.value, entry.revision, entry.key) == (VALUE, 1, "a/b=c_d-1.x")
        assert (await theirs.get("created", revision=2)).value == b"1"
        for key in ("gone", "purged"):
            with pytest.raises(nats.js.errors.KeyNotFoundError):
                await theirs.get(key)
        assert sorted(await read_all(theirs.keys, 2)) == ["a/b=c_d-1.x", "created"]
        history = await read_all(partial(theirs.history, "gone"), 2)
        assert [(e.value, e.operation) for e in history] == [(b"1", None), (b"", "DEL")]
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await theirs.update("created", b"x", 2)
        with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
            await theirs.create("created", b"x")
        status = await theirs.status()
        assert (status.history, status.values, status.ttl) == (5, 6, 3600)
        await theirs.purge_deletes(olderthan=-1)
        assert await kv.history("gone") == []
    finally:
        await nc.close()


async def test_we_read_what_nats_py_writes(nats_server: Server, jetstream: JetStream) -> None:
    nc = await nats.connect(nats_server.url)
    try:
        theirs = await nc.jetstream().create_key_value(TheirConfig(bucket="theirs", history=5, description="d"))
        await theirs.put("a/b=c_d-1.x", VALUE)
        await theirs.create("created", b"1")
        await theirs.update("created", b"2", 2)
        await theirs.put("gone", b"1")
        await theirs.delete("gone")
        await theirs.put("purged", b"1")
        await theirs.purge("purged")
        kv = await jetstream.key_value("theirs")
        status = await kv.status()
        assert (status.history, status.config.description, status.values) == (5, "d", 6)
        entry = await kv.get("a/b=c_d-1.x")
        assert (entry.value, entry.revision) == (VALUE, 1)
        assert [entry.value for entry in await kv.history("created")] == [b"1", b"2"]
        assert [key async for key in kv.keys(">")] == ["a/b=c_d-1.x", "created"]
        for key, operation in (("gone", "DEL"), ("purged", "PURGE")):
            with pytest.raises(KeyDeleted) as deleted:
                await kv.get(key)
            assert deleted.value.operation == operation
        with pytest.raises(KeyExists):
            await kv.create("created", b"x")
        with pytest.raises(WrongRevision) as lost:
            await kv.update("created", b"x", 2)
        assert lost.value.actual == 3
        async with kv.watch() as watcher:
            assert [(e.key, e.operation) async for e in watcher.initial()] == [
                ("a/b=c_d-1.x", "PUT"),
                ("created", "PUT"),
                ("gone", "DEL"),
                ("purged", "PURGE"),
            ]
            await theirs.put("later", b"1")
            assert (await watcher.next(20)).key == "later"
    finally:
        await nc.close()
