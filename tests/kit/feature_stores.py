"""How the features of groups, buckets, stores and administration are used, as in tests.kit.feature_uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from natsproto.errors import ApiError
from natsproto.jetstream import JsMessage, Placement, groups
from natsproto.jetstream.groups import ElasticGroup, StaticGroup
from tests.kit.features import FeatureGround, feature

Steps = AsyncGenerator[None]

# ---------------------------------------------------------------- groups


async def handled(message: JsMessage) -> None:
    """Acknowledged by its group."""


@feature("static groups", "partitioned groups", "2.11")
async def static_group(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    group = await StaticGroup.create(world.js, "S", "g", max_members=2, members=["a", "b"])
    await _member(group)


async def _member(group: Any) -> None:
    member = group.consume("a", handled)
    async with asyncio.timeout(10), member:
        pass


@feature("elastic groups with filters", "partitioned groups", "2.11")
async def elastic_group(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    group = await ElasticGroup.create(world.js, "S", "g", max_members=2, filters={"s.*": [1]})
    await group.add_members("a")
    await _member(group)


@feature("elastic groups without filters", "partitioned groups", "2.12")
async def open_elastic_group(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    group = await ElasticGroup.create(world.js, "S", "g", max_members=2)
    await group.add_members("a")
    await _member(group)


async def _joined(world: FeatureGround, **options: Any) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def handler(message: JsMessage) -> None:
        await heard.put(message.data)

    stream = await world.js.stream("S")
    world.begin()
    async with groups.join(stream, "g", handler, partitions=2, **options):
        await world.fill("s.a")
        async with asyncio.timeout(20):
            assert await heard.get() == b"s.a"


@feature("`groups.join` with filters", "partitioned groups", "2.11")
async def join_by_filters(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    await _joined(world, filters={"s.*": [1]})


@feature("`groups.join` without filters", "partitioned groups", "2.12")
async def join_open(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    await _joined(world)


# ---------------------------------------------------------------- buckets


@feature("everything not named below", "key/value", "2.10")
async def bucket(world: FeatureGround) -> Steps:
    yield
    kv = await world.js.create_key_value(bucket="B", history=3)
    revision = await kv.create("k", b"1")
    await kv.update("k", b"2", revision)
    assert [entry.value for entry in await kv.history("k")] == [b"1", b"2"]
    async with kv.watch() as watcher:
        assert (await watcher.next()).value == b"2"


@feature("`limit_marker_ttl`", "key/value", "2.11")
async def marker_ttl(world: FeatureGround) -> Steps:
    yield
    await world.js.create_key_value(bucket="B", limit_marker_ttl=5)


@feature("`limit_marker_ttl` in `update_key_value`", "key/value", "2.11")
async def updated_marker_ttl(world: FeatureGround) -> Steps:
    await _bucket(world)
    yield
    await world.js.update_key_value(bucket="B", limit_marker_ttl=5)


async def _bucket(world: FeatureGround, **fields: Any) -> Any:
    known = {name: value for name, value in fields.items() if world.knows("2.11" if name != "allow_atomic" else "2.12")}
    await world.admin.create_key_value(bucket="B", **known)
    await (await world.admin.key_value("B")).put("k", b"1")
    return await world.js.key_value("B")


def _key_ttl(verb: str, *args: Any) -> None:
    @feature(f"`ttl` of `{verb}`", "key/value", "2.11")
    async def write(world: FeatureGround) -> Steps:
        kv = await _bucket(world, limit_marker_ttl=5)
        yield
        await getattr(kv, verb)(*args, ttl=60)


_key_ttl("put", "k", b"2")
_key_ttl("create", "new", b"2")
_key_ttl("update", "k", b"2", 1)
_key_ttl("purge", "k")


@feature("`lock`", "key/value", "2.11")
async def lock(world: FeatureGround) -> Steps:
    kv = await _bucket(world, limit_marker_ttl=5)
    yield
    async with kv.lock("l"):
        pass


@feature("`get_many`", "key/value", "2.11")
async def get_many(world: FeatureGround) -> Steps:
    kv = await _bucket(world)
    yield
    assert [entry.value for entry in (await kv.get_many(["k"])).values()] == [b"1"]


@feature("`allow_atomic`", "key/value", "2.12")
async def atomic_bucket(world: FeatureGround) -> Steps:
    yield
    await world.js.create_key_value(bucket="B", allow_atomic=True)


@feature("`atomic`", "key/value", "2.12")
async def atomic_keys(world: FeatureGround) -> Steps:
    kv = await _bucket(world, allow_atomic=True)
    yield
    async with kv.atomic() as batch:
        await batch.put("a", b"1")
        await batch.put("b", b"2")
    assert (await kv.get("b")).value == b"2"


@feature("everything not named below", "object stores", "2.10")
async def object_store(world: FeatureGround) -> Steps:
    yield
    store = await world.js.create_object_store(bucket="O")
    await store.put("o", bytes(300_000))
    async with store.get("o") as reader:
        assert sum([len(piece) async for piece in reader]) == 300_000


@feature("`allow_batched`", "object stores", "2.14")
async def batched_store(world: FeatureGround) -> Steps:
    yield
    store = await world.js.create_object_store(bucket="O", allow_batched=True)
    await store.put("o", bytes(300_000))


@feature("`allow_batched` in `update_object_store`", "object stores", "2.14")
async def updated_store(world: FeatureGround) -> Steps:
    await world.admin.create_object_store(bucket="O")
    yield
    await world.js.update_object_store(bucket="O", allow_batched=True)


# ---------------------------------------------------------------- administration


@feature("`placement` of the next leader", "administration", "2.11")
async def placed(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    with pytest.raises(ApiError, match="clustering support required"):  # this server knows the call
        await world.js.admin.step_down_stream_leader("S", placement=Placement(preferred="n2"))


@feature("`evacuate_stream_peer`, `cancel_stream_move`, `evacuate_server`, `rescue_meta`", "administration", "2.15")
async def cancel_move(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    with pytest.raises(ApiError, match="clustering support required"):  # this server knows the call
        await world.js.admin.cancel_stream_move("S")
