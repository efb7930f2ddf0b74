"""Buckets elsewhere: domains, other accounts, mirrors and sources (ADR-19, ADR-57)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import natsproto
from natsproto.errors import BucketNotFound, InvalidSubject, KeyExists, WrongRevision
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.bucket_config import KeyValueConfig
from natsproto.jetstream._values.config_parts import ExternalStream, Placement, StreamSource, SubjectTransform
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._watch import KeyWatcher
from natsproto.testing import run_server
from tests.kit.servers import hub_and_leaf

LONG = 20.0


async def hear(watcher: KeyWatcher, key: str, value: bytes) -> None:
    """Waits until a watch has told of it: what is sourced comes when it comes."""
    async with asyncio.timeout(LONG):
        async for entry in watcher:
            if (entry.key, entry.value) == (key, value):
                return


async def test_bucket_of_a_domain() -> None:
    async with (
        run_server(jetstream=True, config="jetstream { domain: HUB }") as server,
        natsproto.connect(server.url) as nc,
    ):
        kv = await nc.jetstream(domain="HUB").create_key_value(bucket="b", history=3, allow_atomic=True)
        await everything(kv)
        assert (await (await nc.jetstream().key_value("b")).get("a")).value == b"4"


async def test_bucket_of_another_account() -> None:
    accounts = """
    jetstream: enabled
    accounts {
        A { jetstream: enabled, users: [{user: a, password: x}], exports: [
            {service: "$JS.API.>", response: stream}, {service: "$KV.>", response: stream}, {stream: "forI.>"}]}
        I { users: [{user: i, password: x}], imports: [
            {service: {account: A, subject: "$JS.API.>"}, to: "fromA.>"},
            {service: {account: A, subject: "$KV.>"}, to: "fromA.$KV.>"}]}
    }
    """
    async with run_server(jetstream=True, config=accounts) as server:
        url = server.url.replace("nats://", "nats://i:x@")
        async with natsproto.connect(url) as nc:
            kv = await nc.jetstream(prefix="fromA").create_key_value(bucket="b", history=3)
            assert await kv.put("a", b"1") == 1
            assert (await kv.get("a")).value == b"1"
            assert await kv.update("a", b"2", 1) == 2
            with pytest.raises(WrongRevision):
                await kv.update("a", b"2", 1)


async def everything(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    with pytest.raises(KeyExists):
        await kv.create("a", b"x")
    assert await kv.update("a", b"2", 1) == 2
    async with kv.watch("*") as watcher:
        await watcher.ready()
        await kv.delete("b")
        assert [(await watcher.next(LONG)).key for _ in range(2)] == ["a", "b"]
    async with kv.atomic() as batch:
        await batch.put("a", b"4")
        await batch.put("c", b"5")
    assert [entry.value for entry in await kv.history("a")] == [b"1", b"2", b"4"]
    assert set(await kv.get_many(["a", "b", "c"])) == {"a", "c"}
    assert [key async for key in kv.keys("*")] == ["a", "c"]


async def test_mirror_is_written_at_its_origin(jetstream: JetStream) -> None:
    origin = await jetstream.create_key_value(bucket="origin", history=3)
    await origin.put("a", b"1")
    await jetstream.create_key_value(bucket="mirror", mirror=StreamSource(name="origin"), history=3)
    mirror = await jetstream.key_value("mirror")
    config = mirror.stream.cached_info.config
    assert config.mirror is not None
    assert (config.mirror.name, config.mirror_direct, config.subjects) == ("KV_origin", True, ())
    async with mirror.watch() as watcher:
        await hear(watcher, "a", b"1")
        assert await mirror.put("b", b"2") == 2
        await hear(watcher, "b", b"2")
        await origin.put("c", b"3")
        await hear(watcher, "c", b"3")
    assert (await mirror.get("b")).value == b"2"
    assert (await origin.get("b")).value == b"2"
    assert [entry.key for entry in await mirror.history("a")] == ["a"]
    assert sorted(await mirror.get_many([">"])) == ["a", "b", "c"]
    with pytest.raises(WrongRevision) as lost:
        await mirror.update("a", b"x", 2)
    assert lost.value.actual == 1
    deleted = await origin.delete("c")
    assert await mirror.create("c", b"again") == deleted + 1  # though it may not have heard of the deletion
    assert sorted([name async for name in jetstream.key_value_names()]) == ["mirror", "origin"]


async def test_sources_bring_in_the_keys_of_other_buckets(jetstream: JetStream) -> None:
    for bucket in ("ORDERS", "OLD"):
        kv = await jetstream.create_key_value(bucket=bucket)
        await kv.put(f"NEW.{bucket}", b"1")
        await kv.put("other", b"2")
    events = await jetstream.create_stream(name="EVENTS", subjects=["events.>"])
    await jetstream.publish("events.processed.x", b"3")
    sources = [
        StreamSource(name="ORDERS", filter_subject="$KV.ORDERS.NEW.>"),
        StreamSource(name="KV_OLD"),
        StreamSource(
            name=events.name,
            subject_transforms=[SubjectTransform(src="events.processed.>", dest="$KV.ALL.events.>")],
        ),
    ]
    every = await jetstream.create_key_value(bucket="ALL", sources=sources)
    async with every.watch() as watcher:
        seen: set[str] = set()
        async with asyncio.timeout(LONG):
            while len(seen) < 4:
                seen.add((await watcher.next()).key)
    assert seen == {"NEW.ORDERS", "NEW.OLD", "other", "events.x"}
    assert (await every.get("other")).value == b"2"
    await every.put("mine", b"4")
    assert (await every.get("mine")).value == b"4"


@pytest.fixture
async def domains() -> AsyncIterator[tuple[natsproto.Client, natsproto.Client]]:
    """Clients of a hub in the domain "hub" and of a leaf node in the domain "edge" that has joined it."""
    async with hub_and_leaf() as clients:
        yield clients


async def test_bucket_behind_a_leaf_node(
    domains: tuple[natsproto.Client, natsproto.Client],
) -> None:
    far, near = domains
    await everything(await near.jetstream(domain="hub").create_key_value(bucket="b", history=3, allow_atomic=True))
    locks = await near.jetstream(domain="hub").create_key_value(bucket="locks", limit_marker_ttl=1)
    async with locks.lock("a") as lock:
        assert await lock.put("b", b"1") > lock.token
    assert (await (await far.jetstream().key_value("b")).get("a")).value == b"4"
    with pytest.raises(BucketNotFound):
        await near.jetstream().key_value("b")


async def test_mirror_in_another_domain(
    domains: tuple[natsproto.Client, natsproto.Client],
) -> None:
    far, near = domains
    origin = await far.jetstream().create_key_value(bucket="origin")
    await origin.put("a", b"1")
    source = StreamSource(name="origin", external=ExternalStream(api="$JS.hub.API"))
    mirror = await near.jetstream().create_key_value(bucket="mirror", mirror=source)
    for kv in (mirror, await far.jetstream(domain="edge").key_value("mirror")):
        async with kv.watch() as watcher:
            await hear(watcher, "a", b"1")
            await kv.put("b", b"2")
            await hear(watcher, "b", b"2")
            assert (await kv.get("b")).value == b"2"
            assert (await origin.get("b")).value == b"2"
            await kv.purge("b")
            await hear(watcher, "b", b"")


async def test_every_option_of_a_bucket_arrives(jetstream: JetStream) -> None:
    config = KeyValueConfig(
        bucket="b",
        description="all of it",
        history=7,
        ttl=60,
        max_value_size=1000,
        max_bytes=1_000_000,
        storage="file",
        num_replicas=1,
        placement=Placement(cluster="", tags=[]),
        compression=True,
        limit_marker_ttl=2,
        allow_atomic=True,
        metadata={"unit": "none"},
    )
    kv = await jetstream.create_key_value(config)
    stream = kv.stream.cached_info.config
    assert (stream.subjects, stream.max_msgs_per_subject, stream.max_age, stream.max_msg_size) == (
        ("$KV.b.>",),
        7,
        60,
        1000,
    )
    assert (stream.discard, stream.allow_rollup_hdrs, stream.deny_delete, stream.allow_direct) == (
        "new",
        True,
        True,
        True,
    )
    assert (stream.compression, stream.allow_msg_ttl, stream.subject_delete_marker_ttl) == ("s2", True, 2)
    assert (stream.duplicate_window, stream.allow_atomic, stream.max_bytes) == (60, True, 1_000_000)
    status = await kv.status()
    assert (status.history, status.ttl, status.is_compressed, status.limit_marker_ttl) == (7, 60, True, 2)
    assert status.metadata["unit"] == "none"
    assert status.config.replace(metadata={}, placement=None) == config.replace(metadata={}, placement=None)
    for name in ("", "a.b", "a b", "a\n", "ä", "a*", "a/b"):
        with pytest.raises(InvalidSubject, match="bucket"):
            await jetstream.create_key_value(bucket=name)
        with pytest.raises(InvalidSubject, match="bucket"):
            await jetstream.key_value(name)
        with pytest.raises(InvalidSubject, match="bucket"):
            await jetstream.delete_key_value(name)
