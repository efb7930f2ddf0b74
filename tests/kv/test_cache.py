"""A cache: the bucket as a mapping in memory."""

from __future__ import annotations

import asyncio

import pytest

from natsproto import Client
from natsproto.errors import BucketNotFound, LocalProtocolError, RequestTimeout
from natsproto.jetstream._context import JetStream

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
