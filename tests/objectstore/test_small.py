"""Objects of one chunk: fewer messages, and the same answers as for every other object."""

from __future__ import annotations

import asyncio
import gc
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsproto import Client
from natsproto.errors import DigestMismatch, ObjectNotFound, RequestTimeout
from natsproto.jetstream import JetStream
from natsproto.jetstream.objectstore import ObjectStore
from tests.objectstore.helpers import CHUNK, chunks, cleanups_ended, content, holds_only, pieces, read_object


@pytest.fixture
async def store(jetstream: JetStream) -> ObjectStore:
    return await jetstream.create_object_store("files", storage="memory")


async def test_get_of_one_chunk_takes_two_messages(
    store: ObjectStore, nats_client: Client, tmp_path: pathlib.Path
) -> None:
    data = content(CHUNK)
    info = await store.put("o", data)
    for get in (
        lambda: store.get_bytes("o"),
        lambda: read_object(store.get("o")),
        lambda: store.get_file("o", tmp_path / "o"),
    ):
        before = nats_client.stats.out_msgs
        await get()
        assert nats_client.stats.out_msgs == before + 2
    before = nats_client.stats.out_msgs
    assert await store.get_bytes(info) == data == (tmp_path / "o").read_bytes()
    assert nats_client.stats.out_msgs == before + 1
    assert [name async for name in store._index.stream.consumer_names()] == []


@pytest.mark.parametrize("size", [1, CHUNK - 1])
async def test_put_of_one_chunk_takes_few_messages(store: ObjectStore, nats_client: Client, size: int) -> None:
    for data, messages in ((content(size), 3), (content(size, 2), 4)):
        before = nats_client.stats.out_msgs
        await store.put("o", data)
        assert nats_client.stats.out_msgs == before + messages
        assert await store.get_bytes("o") == data
    await holds_only(store, ["o"])


async def test_look_up_of_a_put_is_repeated(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with the upload; a long upload must not fail because the look-up did."""
    index, names = store._index, list[str]()
    find = index.find

    async def fail_once(name: str, **options: Any) -> Any:
        names.append(name)
        if len(names) == 1:
            raise RequestTimeout("info", 0.1)
        return await find(name, **options)

    await store.put("o", b"old")
    monkeypatch.setattr(index, "find", fail_once)
    await store.put("o", b"new")
    assert (await store.get_bytes("o"), names[:2]) == (b"new", ["o", "o"])
    await holds_only(store, ["o"])


async def test_failed_upload_ends_its_look_up(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    async def fail(*_: object, **__: object) -> None:
        asked.set()
        raise RequestTimeout("info", 0.1)

    async def fail_afterwards() -> AsyncIterator[bytes]:
        await asked.wait()
        yield b"piece"
        raise OSError("no more")

    monkeypatch.setattr(store._index, "find", fail)
    with pytest.raises(OSError, match="no more"):
        await store.put("o", fail_afterwards())
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_small_pieces_are_one_chunk(store: ObjectStore) -> None:
    reported: list[tuple[int, int]] = []
    await store.put("o", pieces(b"a", b"", b"bc"), progress=lambda step: reported.append((step.bytes, step.chunks)))
    assert await store.get_bytes("o") == b"abc"
    assert reported == [(3, 1)]


@pytest.mark.parametrize("damage", ["content", "gone"])
async def test_damage_of_one_chunk_is_found(jetstream: JetStream, store: ObjectStore, damage: str) -> None:
    info = await store.put("o", b"right")
    subject = f"$O.files.C.{info.nuid}"
    stream = store._index.stream
    await stream.purge(subject=subject)
    if damage != "gone":
        await jetstream.publish(subject, b"wrong")
    for get in (store.get_bytes("o"), store.get_bytes(info), read_object(store.get("o"))):
        with pytest.raises(DigestMismatch):
            await get


async def test_one_chunk_without_direct_get(jetstream: JetStream, store: ObjectStore) -> None:
    stream = await jetstream.stream("OBJ_files")
    await store.put("o", b"data")
    await stream.update(allow_direct=False)
    for bound in (store, await jetstream.object_store("files"), await jetstream.object_store("files", bind=True)):
        assert await bound.get_bytes("o") == b"data"
        assert not bound._index.stream.reads_directly


async def test_links_lead_to_one_chunk(store: ObjectStore) -> None:
    await store.put("o", b"data")
    await store.add_link("link", "o")
    assert await store.get_bytes("link") == b"data"


async def test_servers_that_lag_do_not_hide_own_changes(
    jetstream: JetStream, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await store.put("o", b"old")
    stale = await store._index.stream.get_last_message(f"$O.files.M.{'bw=='}")
    chunk = await store._index.stream.get_last_message(f"$O.files.C.{old.nuid}")

    async def lagging(subject: str, _: object) -> object:
        return stale if ".M." in subject else chunk

    await store.put("o", b"new")
    monkeypatch.setattr(store._index, "get_directly", lagging)
    assert await store.get_bytes("o") == b"new"
    await store.delete("o")
    with pytest.raises(ObjectNotFound):
        await store.get_bytes("o")


async def test_cancelled_put_of_one_chunk_leaves_nothing(store: ObjectStore) -> None:
    for turns in range(40):
        putting = asyncio.create_task(store.put("o", b"data"))
        for _ in range(turns):
            await asyncio.sleep(0)
        putting.cancel()
        await asyncio.wait({putting})
        await cleanups_ended(store)
        held = [info async for info in store.list()]
        assert {info.nuid: 1 for info in held} == await chunks(store)
