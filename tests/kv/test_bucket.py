"""A bucket on a real server: reading and writing one key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import natsproto
from natsproto.errors import (
    BucketNotFound,
    InvalidSubject,
    KeyDeleted,
    KeyExists,
    KeyNotFound,
    WrongRevision,
)
from natsproto.jetstream._context import JetStream
from natsproto.testing import FaultProxy, Server
from tests.kit.contents import all_keys


async def test_what_was_put_is_got(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    first = await kv.put("eu.tax", b"19")
    second = await kv.put("eu.tax", b"20")
    assert (first, second) == (1, 2)
    entry = await kv.get("eu.tax")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == ("b", "eu.tax", b"20", 2)
    assert (entry.operation, entry.delta, entry.is_deleted, entry.size) == ("PUT", 0, False, 2)
    assert abs(entry.created - datetime.now(UTC)) < timedelta(minutes=1)


async def test_missing_key_error_says_why(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=3)
    with pytest.raises(KeyNotFound) as missing:
        await kv.get("a")
    assert type(missing.value) is KeyNotFound
    await kv.put("a", b"1")
    assert await kv.delete("a") == 2
    with pytest.raises(KeyDeleted) as deleted:
        await kv.get("a")
    assert (deleted.value.bucket, deleted.value.key, deleted.value.revision) == ("b", "a", 2)
    assert deleted.value.operation == "DEL"
    assert (await kv.get("a", revision=1)).value == b"1"
    await kv.purge("a")
    with pytest.raises(KeyDeleted, match="purged"):
        await kv.get("a")
    with pytest.raises(KeyNotFound):
        await kv.get("a", revision=1)


async def test_a_revision_of_another_key_is_not_found(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    await kv.put("b", b"2")
    with pytest.raises(KeyNotFound, match="revision 2"):
        await kv.get("a", revision=2)


async def test_create_succeeds_only_where_there_is_no_value(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    assert await kv.create("a", b"1") == 1
    with pytest.raises(KeyExists) as exists:
        await kv.create("a", b"2")
    assert (exists.value.expected, exists.value.actual) == (0, 1)
    await kv.delete("a")
    assert await kv.create("a", b"3") == 3
    await kv.purge("a")
    assert await kv.create("a", b"4") == 5
    assert (await kv.get("a")).value == b"4"


async def test_wrong_revision_names_both_revisions(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    assert await kv.update("a", b"1", 0) == 1
    assert await kv.update("a", b"2", 1) == 2
    with pytest.raises(WrongRevision) as lost:
        await kv.update("a", b"x", 1)
    assert (lost.value.expected, lost.value.actual) == (1, 2)
    for verb in (kv.delete, kv.purge):
        with pytest.raises(WrongRevision) as lost:
            await verb("a", revision=1)
        assert (lost.value.expected, lost.value.actual) == (1, 2)
    assert (await kv.get("a")).value == b"2"
    assert await kv.delete("a", revision=2) == 3


async def test_wrong_revision_of_a_batch_is_certain(nats_server: Server, jetstream: JetStream) -> None:
    """The only server has refused the commit, whatever the delay makes of the ages of messages."""
    near = await jetstream.create_key_value("cfg", storage="memory", allow_atomic=True)
    async with FaultProxy(nats_server.host, nats_server.port) as proxy, natsproto.connect(proxy.url) as nc:
        far = await nc.jetstream().key_value("cfg")
        proxy.delay(0.05)
        await near.put("a", b"1")
        with pytest.raises(WrongRevision):
            async with far.atomic() as batch:
                await batch.update("a", b"9", 7)


async def test_of_many_who_want_the_same_exactly_one_wins(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")

    async def create(number: int) -> bool:
        try:
            await kv.create("a", b"%d" % number)
        except KeyExists:
            return False
        return True

    for _ in range(5):
        assert sum(await asyncio.gather(*map(create, range(20)))) == 1
        await kv.delete("a")

    losses: list[WrongRevision] = []

    async def add() -> None:
        while True:
            entry = await kv.get("count")
            try:
                await kv.update("count", b"%d" % (int(entry.value) + 1), entry.revision)
                return
            except WrongRevision as lost:
                losses.append(lost)

    await kv.put("count", b"0")
    await asyncio.gather(*(add() for _ in range(20)))
    assert (await kv.get("count")).value == b"20"
    assert losses
    assert all(lost.actual is not None and lost.actual > lost.expected for lost in losses)


async def test_history_is_reported_oldest_first(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=3)
    for number in range(4):
        await kv.put("a", b"%d" % number)
    await kv.put("b", b"x")
    await kv.delete("a")
    found = await kv.history("a")
    assert [(e.value, e.revision, e.operation, e.delta) for e in found] == [
        (b"2", 3, "PUT", 2),
        (b"3", 4, "PUT", 1),
        (b"", 6, "DEL", 0),
    ]
    assert await kv.history("never") == []


async def test_keys_are_chosen_by_the_server(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=2)
    assert await all_keys(kv) == []
    for key in ("eu.de", "eu.fr", "us.ny", "eu.de", "plain"):
        await kv.put(key, b"1")
    await kv.delete("eu.fr")
    assert await all_keys(kv) == ["us.ny", "eu.de", "plain"]
    assert await all_keys(kv, "eu.*", "plain") == ["eu.de", "plain"]
    assert await all_keys(kv, "asia.>") == []


async def test_buckets_are_made_opened_listed_and_deleted(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="OTHER", subjects=["other"])
    assert [name async for name in jetstream.key_value_names()] == []
    await jetstream.create_key_value(bucket="b", history=2)
    await jetstream.create_key_value(bucket="b", history=2)
    await jetstream.create_or_update_key_value(bucket="b", history=3)
    await jetstream.create_or_update_key_value(bucket="c")
    kv = await jetstream.key_value("b")
    await kv.put("a", b"1")
    status = await kv.status()
    assert (status.bucket, status.history, status.values, status.backing_store) == ("b", 3, 1, "JetStream")
    assert sorted([name async for name in jetstream.key_value_names()]) == ["b", "c"]
    assert sorted([found.bucket async for found in jetstream.key_value_statuses()]) == ["b", "c"]
    await jetstream.delete_key_value("b")
    with pytest.raises(BucketNotFound, match="'b'"):
        await jetstream.key_value("b")
    with pytest.raises(BucketNotFound):
        await jetstream.delete_key_value("b")
    with pytest.raises(BucketNotFound):
        await jetstream.update_key_value(bucket="b")
    for call in (kv.get("a"), kv.get("a", revision=1), kv.history("a"), kv.status()):
        with pytest.raises(BucketNotFound):
            await call


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a\n", "a.\n", "ä", "a*", "a.*", "a.>", "a\0", "a$b"])
async def test_a_bad_key_is_refused_before_anything_is_sent(jetstream: JetStream, key: str) -> None:
    kv = await jetstream.key_value("nowhere", bind=True)
    for call in (
        kv.get(key),
        kv.get(key, revision=1),
        kv.put(key, b""),
        kv.create(key, b""),
        kv.update(key, b"", 1),
        kv.delete(key),
        kv.purge(key),
        kv.history(key),
    ):
        with pytest.raises(InvalidSubject, match="key"):
            await call


async def test_update_without_revision_is_refused(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", allow_atomic=True)
    await kv.put("a", b"1")
    with pytest.raises(TypeError, match="put writes without comparing"):
        await kv.update("a", b"2", None)  # type: ignore[arg-type]
    async with kv.atomic() as batch:
        with pytest.raises(TypeError, match="put writes without comparing"):
            await batch.update("a", b"2", None)  # type: ignore[arg-type]
    entry = await kv.get("a")
    assert (entry.value, entry.revision) == (b"1", 1)
