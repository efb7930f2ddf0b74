"""Objects while servers and connections come and go: put whole or not at all, got without a gap."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random

import pytest

import natsproto
from natsproto.errors import BucketNotFound, ConnectionClosed, NatsError
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream.objectstore import ObjectReader
from natsproto.jetstream.objectstore import _reader as readers
from natsproto.jetstream.objectstore._upload import Upload
from natsproto.testing import FaultProxy, run_cluster, run_server
from natsproto.testing._server import Server
from tests.core.helpers import turns_until
from tests.kit.elections import another_leader
from tests.objectstore.helpers import CHUNK, chunks, cleanups_ended, content, holds_only, listed_names

BOTH = pytest.mark.parametrize("batched", [False, True], ids=["window", "fast ingest"])
SIZE = 60 * CHUNK


async def interrupted(
    data: bytes, at: int, interrupt: Callable[[], Coroutine[object, object, object]]
) -> AsyncIterator[bytes]:
    """The content, and in the middle of it something happens."""
    for number, start in enumerate(range(0, len(data), CHUNK)):
        if number == at:
            await interrupt()
        yield data[start : start + CHUNK]


async def rest(obj: ObjectReader) -> bytes:
    """What is left to be read."""
    return b"".join([chunk async for chunk in obj])


# ---------------------------------------------------------------- putting


@BOTH
async def test_a_put_goes_on_over_a_restart(nats_server: Server, jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", allow_batched=batched)
    await store.put("o", b"before")
    data = content(SIZE)

    async def restart() -> None:
        nats_server.kill()
        await nats_server.restart()

    info = await store.put("o", interrupted(data, 30, restart), timeout=20)
    assert info.size == SIZE
    assert await store.get_bytes("o") == data
    await cleanups_ended(store)
    await holds_only(store, ["o"])


@pytest.mark.slow
@BOTH
async def test_put_error_when_a_restart_lost_the_store(
    nats_server: Server, jetstream: JetStream, batched: bool
) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=batched)

    async def restart() -> None:
        nats_server.kill()
        await nats_server.restart()

    with pytest.raises(NatsError) as failure:
        await store.put("o", interrupted(content(SIZE), 30, restart), timeout=2)
    assert "files" in str(failure.value)
    await cleanups_ended(store)
    again = await jetstream.create_object_store(bucket="files", storage="memory")
    assert await chunks(again) == {}


@BOTH
async def test_put_in_an_outage_is_removed_afterwards(nats_server: Server, jetstream: JetStream, batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", allow_batched=batched)
    await store.put("o", b"before")

    async def stop() -> None:
        await nats_server.stop()

    with pytest.raises(NatsError):
        await store.put("o", interrupted(content(SIZE), 30, stop), timeout=0.5)
    assert store._api.connection._engine.cleanups.running
    await nats_server.restart()
    async with asyncio.timeout(30):
        await cleanups_ended(store)
    assert await store.get_bytes("o") == b"before"
    await holds_only(store, ["o"])


@BOTH
async def test_put_over_a_breaking_connection(batched: bool) -> None:
    rng = Random(7)
    data = content(SIZE)
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        store = await nc.jetstream().create_object_store(bucket="files", storage="memory", allow_batched=batched)

        async def cut() -> None:
            proxy.cut()

        for number in range(5):
            source = interrupted(data, rng.randrange(1, 60), cut)
            await store.put("o", source, timeout=20)
            assert await store.get_bytes("o") == data, number
            await cleanups_ended(store)
            await holds_only(store, ["o"])


async def test_put_cancelled_in_an_outage_leaves_nothing(nats_server: Server, jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    stopped = asyncio.Event()

    async def stop() -> None:
        await nats_server.stop()
        stopped.set()

    task = asyncio.create_task(store.put("o", interrupted(content(SIZE), 30, stop), timeout=20))
    await stopped.wait()
    task.cancel()
    await nats_server.restart()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30):
        await cleanups_ended(store)
    assert await chunks(store) == {}
    assert await listed_names(store) == []


async def test_closing_the_client_ends_puts_and_gets(nats_server: Server, jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("o", content(SIZE))
    nc = await natsproto.connect(nats_server.url)
    other = await nc.jetstream().object_store("files")
    with pytest.raises(ConnectionClosed):
        await other.put("p", interrupted(content(SIZE), 30, nc.close))
    await turns_until(lambda: not other._api.connection._engine.cleanups.running)
    nc = await natsproto.connect(nats_server.url)
    other = await nc.jetstream().object_store("files")
    async with other.get("o") as obj:
        await anext(obj)
        await nc.close()
        with pytest.raises(ConnectionClosed):
            await rest(obj)


async def test_close_ends_cancelled_deletes_and_puts(nats_server: Server, jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    for name in ("deleted", "replaced"):
        await store.put(name, content(3 * CHUNK))
    nc = await natsproto.connect(nats_server.url)
    other = await nc.jetstream().object_store("files")
    reading = asyncio.Event()

    async def wait() -> None:
        reading.set()
        await asyncio.Event().wait()

    put = asyncio.create_task(other.put("replaced", interrupted(content(SIZE), 30, wait)))
    await reading.wait()
    delete = asyncio.create_task(other.delete("deleted"))
    await asyncio.sleep(0)
    put.cancel()
    delete.cancel()
    await asyncio.sleep(0)
    await nc.close()
    assert await listed_names(store) == ["replaced"]
    await holds_only(store, ["replaced"])


async def test_close_in_an_outage_ends_a_delete(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    store = await nc.jetstream().create_object_store(bucket="files")
    await store.put("o", content(3 * CHUNK))
    await nats_server.stop()
    delete = asyncio.create_task(store.delete("o"))
    await asyncio.sleep(0)
    await nc.close()
    with pytest.raises(ConnectionClosed, match="files"):
        await delete
    assert not nc._engine.cleanups.running


@pytest.mark.parametrize("denied", ["STREAM.PURGE", "STREAM.MSG.GET", "STREAM.INFO"])
async def test_put_and_get_with_few_permissions(denied: str) -> None:
    config = """
        accounts { A { jetstream: enabled, users: [
            { user: all, password: x }
            { user: some, password: x, permissions: { publish: { deny: "$JS.API.%s.>" } } } ] } }
    """
    async with (
        run_server(jetstream=True, config=config % denied) as server,
        natsproto.connect(server.url, user="all", password="x") as nc,
        natsproto.connect(server.url, user="some", password="x") as limited,
    ):
        store = await nc.jetstream().create_object_store(bucket="files", storage="memory")
        other = await limited.jetstream().object_store("files", bind=True)
        for data in (b"1", b"2"):
            await other.put("o", data)
        assert await other.get_bytes("o") == b"2"
        assert await listed_names(other) == ["o"]
        await cleanups_ended(other)
        assert len(await chunks(store)) == (2 if denied == "STREAM.PURGE" else 1)


# ---------------------------------------------------------------- getting


async def test_a_get_goes_on_over_a_restart_without_a_gap(nats_server: Server, jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    data = content(200 * CHUNK)
    await store.put("o", data)
    got: list[bytes] = []
    async with store.get("o") as obj:
        async for chunk in obj:
            got.append(chunk)
            if len(got) in (30, 100):
                nats_server.kill()
                await nats_server.restart()
    assert b"".join(got) == data


@pytest.mark.slow
async def test_a_get_waits_for_a_server_that_is_away(
    nats_server: Server, jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 0.1)
    store = await jetstream.create_object_store(bucket="files")
    data = content(200 * CHUNK)
    await store.put("o", data)
    stopping: list[asyncio.Task[None]] = []

    async def away() -> None:
        await nats_server.stop()
        await asyncio.sleep(1)  # longer than the get waits; what ends is the client's own time
        await nats_server.restart()

    def tell(progress: Progress) -> None:
        if progress.chunks == 20:
            stopping.append(asyncio.create_task(away()))

    await store.get_file("o", tmp_path / "f", progress=tell, timeout=0.7)
    await stopping[0]
    assert (tmp_path / "f").read_bytes() == data


async def test_get_over_a_breaking_connection() -> None:
    data = content(200 * CHUNK)
    async with (
        run_server(jetstream=True) as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(proxy.url) as nc,
    ):
        store = await nc.jetstream().create_object_store(bucket="files", storage="memory")
        await store.put("o", data)
        got: list[bytes] = []
        async with store.get("o", offset=1000) as obj:
            async for chunk in obj:
                got.append(chunk)
                if len(got) % 25 == 0:
                    proxy.cut()
        assert b"".join(got) == data[1000:]


async def test_a_store_that_is_deleted_ends_a_get(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PREFETCH_BYTES", CHUNK)
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 0.1)
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("o", content(SIZE))
    async with store.get("o") as obj:
        await anext(obj)
        await jetstream.delete_object_store("files")
        with pytest.raises(BucketNotFound):
            await rest(obj)


# ---------------------------------------------------------------- a cluster


async def test_put_stores_chunks_again_when_out_of_order(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new leader does to them; here it is only claimed, three times."""
    in_order = Upload._is_in_order
    claims: list[int] = []
    uploads: list[Upload] = []

    async def source() -> AsyncIterator[bytes]:
        for number in range(200):
            if number in (50, 100):
                await uploads[0]._unordered[-1][0]  # so many are acknowledged at once
            yield content(1000)

    def claimed(upload: Upload) -> bool:
        uploads.append(upload)
        if len(claims) < 3 and len(upload._unordered) > 3 and upload._unordered[2][0].done():
            claims.append(len(upload._unordered))
            return False
        return in_order(upload)

    monkeypatch.setattr(Upload, "_is_in_order", claimed)
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("o", source(), chunk_size=1000)
    assert len(claims) == 3
    assert await store.get_bytes("o") == content(1000) * 200
    await holds_only(store, ["o"])


@pytest.mark.slow
@pytest.mark.timeout(120)
@BOTH
async def test_new_leaders_cost_no_chunk(batched: bool) -> None:
    data = content(SIZE)
    async with run_cluster(jetstream=True) as cluster, natsproto.connect(cluster.urls) as nc:
        js = nc.jetstream(timeout=20)
        await js.account_info()  # by then every node knows where answers go; the first may get lost
        store = await js.create_object_store(bucket="files", num_replicas=3, allow_batched=batched)
        await store.put("o", b"before")

        async def step_down() -> None:
            await another_leader(js, store._index.stream.name)

        for number in (5, 30, 59):
            await store.put("o", interrupted(data, number, step_down), timeout=20)
            await cleanups_ended(store)
            await holds_only(store, ["o"])
            got: list[bytes] = []
            async with store.get("o") as obj:
                async for chunk in obj:
                    got.append(chunk)
                    if len(got) == number:
                        await step_down()
            assert b"".join(got) == data
