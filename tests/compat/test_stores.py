"""Buckets, object stores and services of nats-py on natsproto, beyond their first use."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from natsproto.compat import nats
from natsproto.compat.nats import errors, micro
from natsproto.compat.nats.js import JetStreamContext, api
from natsproto.compat.nats.js import errors as js_errors
from natsproto.compat.nats.micro.request import ServiceError
from natsproto.compat.nats.micro.service import EndpointConfig, GroupConfig, ServiceStats
from natsproto.testing import FaultProxy, Server
from tests.compat.scenarios import CallbackLog


@pytest.fixture
def js(nc: nats.NATS) -> JetStreamContext:
    return nc.jetstream()


# ---------------------------------------------------------------- buckets


async def test_bucket_config_reaches_the_stream(js: JetStreamContext) -> None:
    config = api.KeyValueConfig("B", description="prices", ttl=60, storage=api.StorageType.MEMORY, direct=True)
    kv = await js.create_key_value(config, max_value_size=10, limit_marker_ttl=30.0)
    stream = (await js.stream_info("KV_B")).config
    assert (stream.description, stream.max_age, stream.duplicate_window, stream.storage) == ("prices", 60, 60, "memory")
    assert (stream.max_msg_size, stream.allow_direct, stream.subject_delete_marker_ttl) == (10, True, 30)
    status = await kv.status()
    assert (status.ttl, status.marker_ttl, status.history) == (60, 30, 1)
    assert "limit_marker_ttl" not in config.evolve(limit_marker_ttl=1).as_dict()
    await kv.put("a", b"1")
    assert (await (await js.key_value("B")).get("a")).value == b"1"
    assert await js.delete_key_value("B")
    with pytest.raises(js_errors.BucketNotFoundError):
        await js.key_value("B")


async def test_bucket_config_is_checked(js: JetStreamContext) -> None:
    for name in ("", "a.b", "a b"):
        with pytest.raises(js_errors.InvalidBucketNameError):
            await js.create_key_value(bucket=name)
        with pytest.raises(js_errors.InvalidBucketNameError):
            await js.object_store(name)
    with pytest.raises(js_errors.KeyHistoryTooLargeError, match="max of 64"):
        await js.create_key_value(bucket="B", history=65)
    await js.add_stream(name="KV_ALIEN", subjects=["alien"])
    with pytest.raises(js_errors.BadBucketError):
        await js.key_value("ALIEN")


@pytest.mark.slow
@pytest.mark.differs("a race in nats-py: it sometimes raises ConnectionResetError")
async def test_calls_of_stores_end_in_an_outage(nats_server: Server, package: Any) -> None:
    log = CallbackLog()
    async with FaultProxy(nats_server.host, nats_server.port) as proxy:
        nc = await package.connect(proxy.url, max_reconnect_attempts=-1, **log.callbacks())
        js = nc.jetstream(timeout=0.5)
        kv, store = await js.create_key_value(bucket="B"), await js.create_object_store("O")
        proxy.refuse()
        proxy.cut()
        await log.until("disconnected_cb")
        for call in (kv.watchall, kv.keys, partial(kv.history, "k"), kv.purge_deletes, store.watch, store.list):
            with pytest.raises(package.errors.TimeoutError):
                await call()
        with pytest.raises(package.errors.TimeoutError):
            await store.get("o")
        await nc.close()


async def test_bucket_get_says_which_key_it_is(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B")
    await kv.put("a", b"1")
    with pytest.raises(js_errors.KeyNotFoundError) as caught:
        await kv.get("b", revision=1)
    assert caught.value.message == "expected '$KV.B.b', but got '$KV.B.a'"
    with pytest.raises(js_errors.KeyNotFoundError) as caught:
        await kv.get("a", revision=7)
    assert caught.value.message is None
    for key in (".a", "a.", "a*", ""):
        with pytest.raises(js_errors.InvalidKeyError):
            await kv.get(key)


@pytest.mark.differs("Bucket keys with `validate_keys=False`, and in `purge`, `history` and `watch`")
async def test_bucket_refuses_keys_outside_adr_8(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B")
    calls = (
        kv.get("a b", validate_keys=False),
        kv.put("a b", b"", validate_keys=False),
        kv.create("a b", b"", validate_keys=False),
        kv.update("a b", b"", validate_keys=False),
        kv.delete("a b", validate_keys=False),
        kv.purge("a b"),
        kv.history("a b"),
    )
    for call in calls:
        with pytest.raises(js_errors.InvalidKeyError, match="a b"):
            await call


async def test_bucket_purges_keys_and_markers(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B", history=5)
    for value in (b"1", b"2"):
        await kv.put("a", value)
    with pytest.raises(js_errors.BadRequestError):
        await kv.delete("a", last=1)
    with pytest.warns(DeprecationWarning, match="msg_ttl"):
        assert await kv.delete("a", last=2, msg_ttl=1)
    assert [entry.operation for entry in await kv.history("a")] == [None, None, "DEL"]
    assert await kv.purge("a")
    [marker] = await kv.history("a")
    assert (marker.operation, marker.created is not None) == ("PURGE", True)
    assert await kv.purge_deletes()  # the marker is too young
    assert len(await kv.history("a")) == 1
    assert await kv.purge_deletes(olderthan=-1)
    with pytest.raises(js_errors.NoKeysError):
        await kv.history("a")


async def test_bucket_key_expires(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B", limit_marker_ttl=30)
    await kv.create("a", b"1", msg_ttl=60)
    assert (await js.get_msg("KV_B", 1)).headers["Nats-TTL"] == "60"
    with pytest.raises(js_errors.KeyWrongLastSequenceError):
        await kv.create("a", b"2")
    await kv.purge("a", msg_ttl=90)
    assert (await js.get_last_msg("KV_B", "$KV.B.a")).headers["Nats-TTL"] == "90"


@pytest.mark.differs("`updates()` of a watcher that was stopped")
async def test_watch_shows_history_or_live_keys(js: JetStreamContext) -> None:
    kv = await js.create_key_value(bucket="B", history=5)
    await kv.put("a", b"1")
    await kv.delete("a")
    await kv.put("b", b"2")
    for options, seen in (
        ({"include_history": True}, [("a", b"1"), ("a", b""), ("b", b"2"), None]),
        ({"ignore_deletes": True}, [("b", b"2"), None]),
        ({"meta_only": True}, [("a", b""), ("b", b""), None]),
    ):
        watcher = await kv.watchall(**options)
        found = [await watcher.updates() for _ in seen]
        assert [entry and (entry.key, entry.value or b"") for entry in found] == seen
        await watcher.stop()
        assert await watcher.updates() is None


async def test_watch_of_a_closed_client_is_reported(js: JetStreamContext, nc: nats.NATS) -> None:
    kv = await js.create_key_value(bucket="B")
    watcher = await kv.watchall()
    assert await watcher.updates() is None
    await nc.close()
    with pytest.raises(nats.errors.Error):
        await watcher.updates()


# ---------------------------------------------------------------- objects


async def test_object_store_tells_its_state(js: JetStreamContext) -> None:
    config = api.ObjectStoreConfig(description="files", ttl=60, storage=api.StorageType.MEMORY)
    created = await js.create_object_store("O", config)
    await created.put("a", b"12345")
    status = await (await js.object_store("O")).status()
    assert (status.bucket, status.description, status.ttl, status.storage_type) == ("O", "files", 60, "memory")
    assert (status.replicas, status.sealed, status.size > 5) == (1, False, True)
    assert await js.delete_object_store("O")
    with pytest.raises(js_errors.BucketNotFoundError):
        await js.object_store("O")


async def test_object_from_every_kind_of_source(js: JetStreamContext, tmp_path: Path) -> None:
    store = await js.create_object_store("O")
    (tmp_path / "file").write_text("grün", encoding="utf-8")
    with (tmp_path / "file").open(encoding="utf-8") as text:
        await store.put("text file", text)  # type: ignore[arg-type]  # its bytes are what counts
    await store.put(
        "bytes", b"grun", api.ObjectMeta(headers={"K": "v"}, options=api.ObjectMetaOptions(max_chunk_size=3))
    )
    with pytest.raises(TypeError, match="invalid type"):
        await store.put("number", 7)  # type: ignore[arg-type]  # the mistake itself
    assert (await store.get("text file")).data == "grün".encode()
    info = await store.get_info("bytes")
    assert (info.chunks, info.headers, info.options.max_chunk_size) == (2, {"K": "v"}, 3)
    assert info.meta == api.ObjectMeta("bytes", None, {"K": "v"}, info.options)
    into = io.BytesIO()
    assert (await store.get("bytes", writeinto=into)).data == b""
    assert into.getvalue() == b"grun"


async def test_object_that_is_deleted_or_unnamed(js: JetStreamContext) -> None:
    store = await js.create_object_store("O")
    await store.put("a", b"1")
    await store.delete("a")
    assert (await store.get("a", show_deleted=True)).info.deleted
    assert [info.deleted for info in await store.list()] == [True]
    with pytest.raises(js_errors.NotFoundError):
        await store.list(ignore_deletes=True)
    for call in (store.get_info(""), store.get(""), store.get_info("none")):
        with pytest.raises(js_errors.ObjectNotFoundError):
            await call
    with pytest.raises(js_errors.ObjectDeletedError):
        await store.update_meta("a", api.ObjectMeta("a"))


@pytest.mark.differs("`ObjectStore.update_meta` with another name")
async def test_object_is_renamed_to_a_free_name(js: JetStreamContext) -> None:
    store = await js.create_object_store("O")
    for name in ("a", "b"):
        await store.put(name, name)
    with pytest.raises(js_errors.ObjectAlreadyExists):
        await store.update_meta("a", api.ObjectMeta("b"))
    await store.update_meta("a", api.ObjectMeta("c", headers={"K": "v"}))
    assert ((await store.get("c")).data, (await store.get_info("c")).headers) == (b"a", {"K": "v"})


async def test_object_meta_that_is_no_json(js: JetStreamContext) -> None:
    store = await js.create_object_store("O")
    await store.put("a", b"1")
    [subject] = (await js.stream_info("OBJ_O", subjects_filter="$O.O.M.>")).state.subjects
    await js.publish(subject, b"{", headers={"Nats-Rollup": "sub"})
    with pytest.raises(js_errors.BadObjectMetaError):
        await store.get_info("a")


async def test_object_watch_of_updates_alone(js: JetStreamContext) -> None:
    store = await js.create_object_store("O")
    await store.put("before", b"")
    watcher = await store.watch(updates_only=True)
    await store.put("after", b"")
    seen = await watcher.updates()
    assert seen is not None
    assert seen.name == "after"
    await watcher.stop()


# ---------------------------------------------------------------- services


@pytest.mark.differs("`reset()` of a service")
async def test_endpoint_answers_with_an_error_of_its_own(nc: nats.NATS) -> None:
    async def refuse(request: micro.Request) -> None:
        assert (request.subject, request.headers) == ("refuse", {"Q": "1"})
        await request.respond_error("TEAPOT", "short and stout", b"body", headers={"K": "v"})

    config = micro.ServiceConfig(name="calc", version="1.0.0")
    async with await micro.add_service(nc, config, description="sums") as service:
        await service.add_endpoint(EndpointConfig(name="refuse", handler=refuse))
        answer = await nc.request("refuse", headers={"Q": "1"})
        assert (answer.data, answer.headers) == (
            b"body",
            {"Nats-Service-Error-Code": "TEAPOT", "Nats-Service-Error": "short and stout", "K": "v"},
        )
        assert service.info().description == "sums"
        assert service.stats().endpoints[0].num_requests == 1
        await service.reset()
        assert service.stats().endpoints[0].num_requests == 0


async def test_endpoint_of_a_group_with_its_queue(nc: nats.NATS) -> None:
    async def handle(request: micro.Request) -> None:
        with pytest.raises(ValueError, match="no reply subject"):
            await request.respond()

    async with await micro.add_service(nc, name="calc", version="1.0.0", queue_group="all") as service:
        group = service.add_group(GroupConfig("v1"), queue_group="workers")
        await group.add_endpoint(EndpointConfig(name="add", handler=handle), subject="sum")
        await service.add_endpoint(name="add", handler=handle)
        [inner, outer] = service.info().endpoints
        assert (inner.subject, inner.queue_group) == ("v1.sum", "workers")
        assert (outer.subject, outer.queue_group) == ("add", "all")
        await nc.publish("v1.sum")
        await nc.flush()
    with pytest.raises(ValueError, match="queue group"):
        micro.ServiceConfig(name="a", version="1.0.0", queue_group="a b")


def test_service_values_convert_to_dicts() -> None:
    started = datetime(2026, 1, 2, 3, 4, 5, 678901)  # as nats-py has it
    stats = ServiceStats(id="i", name="n", version="1.0.0", started=started)
    text = json.dumps(stats.to_dict())
    assert json.loads(text)["started"] == "2026-01-02T03:04:05.678Z"
    assert ServiceStats.from_dict(json.loads(text)).started == started.replace(microsecond=678000)
    error = ServiceError("400", "numbers, please")
    assert ServiceError.from_dict(error.to_dict()) == error
    assert ServiceError.from_dict({}) == ServiceError("", "")
    with pytest.raises(ValueError, match="empty"):
        micro.ServiceConfig(name="a", version="")


async def test_watch_loops_end_with_their_client(nc: nats.NATS) -> None:
    """Loops of programs go on at TimeoutError until the client is closed."""
    bucket = await nc.jetstream().create_key_value(bucket="closed")
    watcher = await bucket.watch("k")
    assert await watcher.updates(timeout=5) is None
    await nc.close()
    for _ in range(2):
        with pytest.raises(errors.TimeoutError):
            await watcher.updates(timeout=0.01)


@pytest.mark.differs("`updates()` without a timeout, and loops over a watcher, when the client is closed")
async def test_waits_without_a_timeout_end_with_the_client(nc: nats.NATS) -> None:
    bucket = await nc.jetstream().create_key_value(bucket="closed")
    watcher = await bucket.watch("k")
    waiting = asyncio.create_task(watcher.updates(timeout=None))
    assert await waiting is None
    waiting = asyncio.create_task(watcher.updates(timeout=None))
    await nc.close()
    with pytest.raises(errors.ConnectionClosedError):
        await waiting
    for _ in range(2):
        assert [entry async for entry in watcher] == []
