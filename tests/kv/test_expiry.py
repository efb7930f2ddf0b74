"""Keys with a time to live, and the markers that the server leaves for them (ADR-48)."""

from __future__ import annotations

import pytest

from natsproto.errors import ConfigError, KeyNotFound, TtlRefused
from natsproto.jetstream._context import JetStream

LONG = 20.0


@pytest.mark.slow
async def test_what_has_expired_is_reported_to_watchers(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", limit_marker_ttl=1, history=5)
    assert (await kv.status()).limit_marker_ttl == 1
    await kv.put("b", b"older")
    await kv.put("c", b"older")
    await kv.put("d", b"older")
    await kv.delete("d")
    async with kv.watch(updates_only=True, meta_only=True) as watcher:
        await watcher.ready()
        await kv.create("a", b"1", ttl=1)
        await kv.put("b", b"2", ttl=1)
        await kv.update("c", b"3", 2, ttl=1)
        await kv.create("d", b"4", ttl=1)
        reported = [await watcher.next(LONG) for _ in range(8)]
    written = [(entry.key, entry.size) for entry in reported if entry.operation == "PUT"]
    assert written == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    gone = [(entry.key, entry.operation) for entry in reported if entry.operation != "PUT"]
    assert sorted(gone) == [(key, "PURGE") for key in ("a", "b", "c", "d")]
    for key in ("a", "b", "c", "d"):
        with pytest.raises(KeyNotFound):  # deleted, or not even that when the marker has gone
            await kv.get(key)
        assert await kv.create(key, b"again")


@pytest.mark.slow
async def test_the_mark_of_a_purge_can_go_by_itself(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", limit_marker_ttl=1)
    await kv.put("a", b"1")
    await kv.purge("a", ttl=60)
    async with kv.watch(include_history=True) as watcher:
        first = await watcher.next(LONG)
        assert (first.operation, first.headers.get("Nats-TTL")) == ("PURGE", "60")


async def test_a_bucket_without_markers_takes_no_ttl(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    for call in (kv.create("a", b"1", ttl=1), kv.purge("a", ttl=1), kv.put("a", b"", ttl=1)):
        with pytest.raises(TtlRefused, match=r"of bucket 'b': .*js.update_key_value\('b', limit_marker_ttl=60\)"):
            await call
    with pytest.raises(ConfigError, match="one second"):
        await kv.create("a", b"1", ttl=0.5)
    with pytest.raises(ConfigError, match="limit_marker_ttl"):
        await jetstream.create_key_value(bucket="c", limit_marker_ttl=0.5)


async def test_markers_can_be_had_later(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="b", description="first")
    kv = await jetstream.update_key_value(bucket="b", description="first", limit_marker_ttl=2)
    await kv.create("a", b"1", ttl="never")
    assert (await kv.get("a")).headers["Nats-TTL"] == "never"
