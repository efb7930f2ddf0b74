"""Several keys at once: read as of one moment, written together, cleaned up."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo

import pytest

from natsproto import Client, connect
from natsproto.errors import (
    BatchRefused,
    BucketNotFound,
    ConfigError,
    InvalidSubject,
    KeyExists,
    KeyNotFound,
    UnsupportedByServer,
    WrongRevision,
)
from natsproto.jetstream import StreamSource
from natsproto.jetstream._context import JetStream
from natsproto.testing import run_server


async def test_several_keys_are_read_as_of_one_moment(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=5)
    await kv.put("a", b"1")
    await kv.put("b", b"2")
    then = await kv.put("c.x", b"3")
    await kv.put("a", b"4")
    await kv.delete("b")
    now = await kv.get_many(["a", "b", "c.*", "never", "a"])
    assert {key: (e.value, e.revision) for key, e in now.items()} == {"c.x": (b"3", 3), "a": (b"4", 4)}
    past = await kv.get_many(["a", "b", "c.x"], up_to_revision=then)
    assert {key: e.value for key, e in past.items()} == {"a": b"1", "b": b"2", "c.x": b"3"}
    assert (await kv.get_many(["a"], up_to_time=past["a"].created))["a"].value == b"1"
    assert await kv.get_many([]) == {}
    with pytest.raises(TypeError, match="not one str"):
        await kv.get_many("a")
    with pytest.raises(InvalidSubject):
        await kv.get_many(["a", "a..b"])
    await jetstream.delete_key_value("b")
    with pytest.raises(BucketNotFound):
        await kv.get_many(["a"])


async def test_more_keys_than_one_answer_holds(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    async with jetstream.publisher() as publisher:
        for number in range(2100):
            await publisher.publish(f"$KV.b.k.{number}", b"%d" % number)
    expected = {f"k.{number}": b"%d" % number for number in range(2100)}
    for wanted in ([">"], list(expected)):
        assert {key: entry.value for key, entry in (await kv.get_many(wanted)).items()} == expected


async def test_get_many_needs_direct_get(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=2)
    await kv.put("a", b"1")
    await kv.stream.update(allow_direct=False)
    for handle in (kv, await jetstream.key_value("b"), await jetstream.key_value("b", bind=True)):
        assert (await handle.get("a")).value == b"1"
        assert (await handle.get("a", revision=1)).value == b"1"
        assert [entry.value for entry in await handle.history("a")] == [b"1"]
        with pytest.raises(KeyNotFound):
            await handle.get("b")
        with pytest.raises(UnsupportedByServer):
            await handle.get_many(["a"])


async def test_several_keys_are_written_together(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", allow_atomic=True, history=3)
    await kv.put("a", b"1")
    await kv.put("gone", b"1")
    await kv.delete("gone")
    async with kv.atomic() as batch:
        await batch.update("a", b"2", 1)
        await batch.create("b", b"3")
        await batch.create("gone", b"4")
        await batch.put("c", b"5")
        await batch.put("c", b"6")
        await batch.delete("d")
    assert batch.revisions == {"a": 4, "b": 5, "gone": 6, "c": 8, "d": 9}
    assert {key: entry.revision for key, entry in (await kv.get_many([">"])).items()} == {
        key: revision for key, revision in batch.revisions.items() if key != "d"
    }
    assert (await kv.history("d"))[0].operation == "DEL"


async def test_batch_with_a_wrong_revision_writes_nothing(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", allow_atomic=True)
    await kv.put("a", b"1")
    await kv.put("b", b"2")

    async def lose() -> None:
        async with kv.atomic() as batch:
            await batch.put("c", b"3")
            await batch.update("a", b"x", 1)
            await batch.update("b", b"x", 1)

    async def create() -> None:
        async with kv.atomic() as batch:
            await batch.create("a", b"x")

    async def compare_what_was_just_written() -> None:
        async with kv.atomic() as batch:
            await batch.put("a", b"x")
            await batch.update("a", b"y", 1)

    async def purge_what_was_just_written() -> None:
        async with kv.atomic() as batch:
            await batch.put("a", b"x")
            await batch.purge("a")

    async def fail() -> None:
        async with kv.atomic() as batch:
            await batch.put("a", b"x")
            raise ZeroDivisionError

    with pytest.raises(WrongRevision) as lost:
        await lose()
    assert (lost.value.key, lost.value.expected, lost.value.actual) == ("b", 1, 2)
    with pytest.raises(KeyExists):
        await create()
    with pytest.raises(ConfigError, match="before"):
        await compare_what_was_just_written()
    with pytest.raises(ConfigError, match="before"):
        await purge_what_was_just_written()
    with pytest.raises(ZeroDivisionError):
        await fail()
    assert {key: entry.value for key, entry in (await kv.get_many([">"])).items()} == {"a": b"1", "b": b"2"}
    async with kv.atomic() as batch:
        pass
    assert batch.revisions == {}


async def test_a_bucket_must_allow_atomic_writes(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b")

    async def write() -> None:
        async with kv.atomic() as batch:
            await batch.put("a", b"1")
            await batch.put("b", b"1")

    with pytest.raises(BatchRefused):
        await write()
    assert await kv.get_many([">"]) == {}


async def test_readers_see_all_of_a_batch_or_nothing(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", allow_atomic=True, history=5)
    keys = [f"k{number}" for number in range(20)]

    async def write() -> None:
        for version in range(20):
            async with kv.atomic() as batch:
                for key in keys:
                    await batch.put(key, b"%d" % version)

    writer = asyncio.create_task(write())
    seen: list[int] = []
    while not writer.done():
        versions = {entry.value for entry in (await kv.get_many(keys)).values()}
        assert len(versions) <= 1
        seen += [int(version) for version in versions]
    await writer
    assert seen == sorted(seen)


async def test_purge_deletes_of_old_and_young_markers(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=5)
    for key in ("a", "b", "other.c"):
        await kv.put(key, b"1")
        await kv.put(key, b"2")
        await kv.delete(key)
    await kv.put("kept", b"3")
    assert await kv.purge_deletes() == 6
    assert await kv.purge_deletes(older_than=1e300) == 0
    assert [entry.operation for entry in await kv.history("a")] == ["DEL"]
    assert await kv.purge_deletes("other.*", older_than=0) == 1
    assert await kv.history("other.c") == []
    assert await kv.purge_deletes(older_than=0) == 2
    assert (await kv.status()).values == 1
    assert (await kv.get("kept")).value == b"3"


async def test_missing_keys_cost_no_request_each(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b")
    await jetstream.publish("$KV.b.k0", b"v")
    await kv.put("k1500", b"v")
    for count in (1000, 1001, 2500):
        before = nats_client.stats.out_msgs
        found = await kv.get_many([f"k{number}" for number in range(count)])
        assert sorted(found) == (["k0", "k1500"] if count == 2500 else ["k0"])
        assert nats_client.stats.out_msgs - before <= 10


async def test_many_names_fit_into_a_small_max_payload() -> None:
    async with run_server(jetstream=True, config="max_payload: 4096") as server, connect(server.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="b")
        await kv.put("key.7", b"v")
        assert list(await kv.get_many([f"key.{number}" for number in range(500)])) == ["key.7"]


async def test_deletes_of_a_mirror_are_purged_at_its_origin(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="origin")
    mirror = await jetstream.create_key_value(bucket="copy", mirror=StreamSource(name="origin"))
    with pytest.raises(ConfigError, match="is a mirror: purge the deletes of its origin, 'origin'"):
        await mirror.purge_deletes()


async def test_markers_age_by_the_clock_of_the_server(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(hours=1)

    kv = await jetstream.create_key_value(bucket="b")
    await kv.put("a", b"1")
    await kv.delete("a")
    monkeypatch.setattr("natsproto.jetstream.kv._bucket.datetime", Ahead)
    assert await kv.purge_deletes() == 0
    assert await kv.purge_deletes(older_than=0) == 1
