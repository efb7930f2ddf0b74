"""Getting objects: whole, in part, into files; and what is damaged is never taken for whole."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
from typing import Any

import pytest

from natsproto import Client
from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    DigestMismatch,
    LocalProtocolError,
    ObjectChanged,
    ObjectNotFound,
    ObjectStoreError,
)
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream import direct_get as _direct
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.codec import NEVER, dumps
from natsproto.jetstream.objectstore import ObjectReader, ObjectStore
from natsproto.jetstream.objectstore import _index as store_index
from natsproto.jetstream.objectstore import _reader as readers
from natsproto.jetstream.objectstore._meta import meta_subject
from tests.jetstream.reading import open_subscriptions
from tests.kit.interruption import interruptions
from tests.objectstore.helpers import CHUNK, content, read_object

SIZE = 5 * CHUNK + 1000


async def store_of_six(js: JetStream, data: bytes | None = None) -> ObjectStore:
    """A store with one object, "o", of six chunks."""
    store = await js.create_object_store(bucket="files", storage="memory")
    await store.put("o", content(SIZE) if data is None else data)
    return store


async def sequences(store: ObjectStore) -> list[int]:
    return [message.seq async for message in store._index.stream.get_batch(subject="$O.files.C.>")]


async def no_consumers(store: ObjectStore) -> None:
    async with asyncio.timeout(10):
        while [name async for name in store._index.stream.consumer_names()]:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- whole


async def test_get_in_chunks_leaves_nothing_open(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of_six(jetstream)
    before = open_subscriptions(nats_client)
    async with store.get("o") as obj:
        assert obj.info == await store.info("o")
        sizes = [len(chunk) async for chunk in obj]
    assert sizes == [CHUNK] * 5 + [1000]
    await no_consumers(store)
    assert open_subscriptions(nats_client) == before


async def test_a_reader_that_stops_early_leaves_nothing(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of_six(jetstream)
    before = open_subscriptions(nats_client)
    tasks = asyncio.all_tasks()
    async with store.get("o") as obj:
        async for _ in obj:
            break
    await no_consumers(store)
    assert open_subscriptions(nats_client) == before
    assert asyncio.all_tasks() == tasks


async def test_a_reader_is_used_inside_its_block_and_once(jetstream: JetStream) -> None:
    store = await store_of_six(jetstream)
    obj = store.get("o")
    with pytest.raises(LocalProtocolError, match="enter the object"):
        _ = obj.info
    with pytest.raises(LocalProtocolError, match="enter the object"):
        await anext(obj)
    async with obj:
        assert len([chunk async for chunk in obj]) == 6
        assert [chunk async for chunk in obj] == []
    with pytest.raises(LocalProtocolError, match="once"):
        await obj.__aenter__()
    async with store.get("o") as left:
        pass
    with pytest.raises(LocalProtocolError, match="block"):
        await anext(left)


async def test_what_is_not_there_is_not_found(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream)
    await store.delete("o")
    for name in ("o", "never"):
        for lookup in (
            store.info(name),
            store.get_bytes(name),
            store.get_file(name, tmp_path / "f"),
            read_object(store.get(name)),
        ):
            with pytest.raises(ObjectNotFound) as missing:
                await lookup
            assert (missing.value.bucket, missing.value.name) == ("files", name)
    assert (await store.info("o", deleted=True)).deleted
    with pytest.raises(BucketNotFound):
        await (await jetstream.object_store("none", bind=True)).get_bytes("o")
    assert os.listdir(tmp_path) == []


async def test_progress_is_reported_after_every_chunk(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream)
    steps = [*range(CHUNK, SIZE, CHUNK), SIZE]
    wanted = [Progress(bytes=size, chunks=number, total=SIZE) for number, size in enumerate(steps, 1)]
    for get in (store.get_bytes, lambda name, **args: store.get_file(name, tmp_path / "f", **args)):
        reported: list[Progress] = []
        await get("o", progress=reported.append)
        assert reported == wanted


async def test_cancelling_a_reader_loses_no_chunk(jetstream: JetStream) -> None:
    data = content(40_000)
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await store.put("o", data, chunk_size=100)
    got: list[bytes] = []
    async with store.get("o") as obj:

        async def one() -> object:
            got.append(await anext(obj))
            return None

        async for run in interruptions(one):
            run.check()
        got += [chunk async for chunk in obj]
    assert b"".join(got) == data


async def test_cancelling_while_entering_leaves_nothing(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of_six(jetstream)
    before, tasks = open_subscriptions(nats_client), asyncio.all_tasks()

    async def enter() -> object:
        async with store.get("o") as obj:
            return obj.info

    async for run in interruptions(enter):
        run.check()
    await no_consumers(store)
    await asyncio.sleep(0)
    assert open_subscriptions(nats_client) == before
    assert asyncio.all_tasks() <= tasks


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("cuts", [[1], [CHUNK], [100_000, 3, 131_072, 70_000]], ids=["bytes", "even", "uneven"])
async def test_get_of_any_range(jetstream: JetStream, cuts: list[int]) -> None:
    data = content(600_000 if cuts[0] > 1 else 50)
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await _put_by_hand(store, "o", data, cuts)
    marks = sorted({0, 1, cuts[0] - 1, cuts[0], cuts[0] + 1, len(data) // 2, len(data) - 1, len(data)})
    for offset in marks:
        for length in (None, 0, 1, cuts[0], len(data) - offset, 10**9):
            got = await read_object(store.get("o", offset=offset, length=length))
            assert got == data[offset:][:length], (offset, length)


async def _put_by_hand(store: ObjectStore, name: str, data: bytes, cuts: list[int], **changes: object) -> None:
    """As a client might that cuts as it pleases: a chunk of each of these sizes in turn."""
    info = await store.put(name, data)
    nuid, js, start, count = "BYHAND", store._api.connection, 0, 0
    while start < len(data):
        size = cuts[count % len(cuts)]
        await js.request(f"$O.files.C.{nuid}", data[start : start + size])
        start, count = start + size, count + 1
    said = info.replace(**{"nuid": nuid, "chunks": count, "options": None, "mtime": NEVER, **changes})
    await js.request(meta_subject("files", name), dumps(said), headers={"Nats-Rollup": "sub"})


async def test_parts_that_do_not_exist_are_refused(jetstream: JetStream) -> None:
    store = await store_of_six(jetstream)
    for arguments in ({"offset": -1}, {"length": -1}, {"offset": 1.0}, {"offset": True}):
        with pytest.raises(ConfigError):
            store.get("o", **arguments)
    with pytest.raises(ConfigError, match=f"beyond the end of an object of {SIZE} bytes"):
        await read_object(store.get("o", offset=SIZE + 1))


async def test_a_part_is_read_without_the_chunks_before_it(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of_six(jetstream, content(4_000_000))
    before = nats_client.stats.in_bytes
    assert await read_object(store.get("o", offset=3_900_000)) == content(4_000_000)[3_900_000:]
    assert nats_client.stats.in_bytes - before < 300_000


# ---------------------------------------------------------------- damage


async def test_digest_mismatch_of_a_changed_chunk(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    data = content(300_000)
    await _put_by_hand(store, "o", data, [CHUNK], digest=(await store.put("other", b"other")).digest)
    got: list[bytes] = []
    async with store.get("o") as obj:
        for _ in range(2):
            got += [await anext(obj)]
        with pytest.raises(DigestMismatch) as damage:
            await anext(obj)
    assert b"".join(got) == data[: 2 * CHUNK]
    error = damage.value
    assert (error.bucket, error.name, error.reason) == ("files", "o", "")
    assert error.expected == (await store.info("o")).digest != error.actual
    with pytest.raises(DigestMismatch):
        await store.get_bytes("o")


@pytest.mark.parametrize("gone", [[0], [2], [5], [0, 1, 2, 3, 4, 5]], ids=["first", "middle", "last", "all"])
@pytest.mark.parametrize("offset", [0, 3 * CHUNK + 5])
async def test_digest_mismatch_of_a_missing_chunk(
    jetstream: JetStream, gone: list[int], offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 20.0)  # it must not come to that
    monkeypatch.setattr(readers, "LOOK_AGAIN_S", (0.01, 0.01))
    store = await store_of_six(jetstream)
    found = await sequences(store)
    for index in gone:
        await store._index.stream.delete_message(found[index])
    async with asyncio.timeout(10):
        with pytest.raises(DigestMismatch) as damage:
            await read_object(store.get("o", offset=offset))
    assert damage.value.name == "o"
    assert re.search(f"{6 - len(gone)} of 6 chunks are there", str(damage.value))


@pytest.mark.parametrize("stale", [2, 3])
async def test_object_whose_info_a_deposed_leader_returns(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, stale: int
) -> None:
    monkeypatch.setattr(readers, "LOOK_AGAIN_S", (0.01, 0.01))
    store = await store_of_six(jetstream, b"before" * CHUNK)
    get, replies = _direct.leader_get, list[RawMessage]()

    async def get_stale(*args: Any, **options: Any) -> RawMessage:
        return replies.pop() if replies else await get(*args, **options)

    before = await store._index.stream.get_last_message(meta_subject("files", "o"))
    await store.put("o", b"after" * CHUNK)
    monkeypatch.setattr(store_index, "leader_get", get_stale)
    replies += [before] * stale
    assert await store.get_bytes("o") == b"after" * CHUNK
    assert not replies


async def test_digest_mismatch_of_a_chunk_deleted_meanwhile(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PREFETCH_BYTES", CHUNK)
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 0.1)
    store = await store_of_six(jetstream, content(40 * CHUNK))
    found = await sequences(store)
    async with store.get("o") as obj:
        await anext(obj)
        for sequence in found[20:]:
            await store._index.stream.delete_message(sequence)
        with pytest.raises(DigestMismatch, match="20 of 40 chunks are there"):
            async for _ in obj:
                pass


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": 299_999}, "digest"),
        ({"size": 200_000}, "there are chunks after its 200000 bytes"),
        ({"size": 300_001}, "bytes are missing"),
        ({"size": 10**9}, "bytes are missing"),
        ({"chunks": 2}, "37856 bytes are missing"),
        ({"chunks": 4}, "3 of 4 chunks are there"),
        ({"chunks": 0}, "300000 bytes are missing"),
        ({"digest": "SHA-256=AAAA"}, "digest"),
        ({"size": 0}, "digest"),
    ],
)
async def test_digest_mismatch_of_wrong_metadata(
    jetstream: JetStream, changes: dict[str, object], complaint: str
) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    await _put_by_hand(store, "o", content(300_000), [CHUNK], **changes)
    async with asyncio.timeout(10):
        with pytest.raises(DigestMismatch, match=complaint):
            await store.get_bytes("o")


async def test_digests_are_read_as_any_client_writes_them(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    data = b"digest of which has - and _ and padding: 0"
    digest = (await store.put("o", data)).digest
    assert {"-", "_"} <= set(digest[8:])
    for written in (digest.rstrip("="), "sha-256" + digest[7:], digest, ""):
        await _put_by_hand(store, "o", data, [5], digest=written)
        assert await store.get_bytes("o") == data
    for other in ("SHA-512=abcd", "SHA-256=!", "x"):
        await _put_by_hand(store, "o", data, [5], digest=other)
        with pytest.raises(ObjectStoreError, match="is not a SHA-256"):
            await store.get_bytes("o")


# ---------------------------------------------------------------- while it changes


async def test_get_of_an_object_replaced_meanwhile(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PREFETCH_BYTES", CHUNK)
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 0.1)
    store = await store_of_six(jetstream, content(40 * CHUNK))
    async with store.get("o") as obj:
        await anext(obj)
        await store.put("o", content(40 * CHUNK, 2))
        with pytest.raises(ObjectChanged) as changed:
            async for _ in obj:
                pass
    assert (changed.value.bucket, changed.value.name) == ("files", "o")


async def test_the_whole_of_a_replaced_object_is_the_new_one(
    jetstream: JetStream, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PREFETCH_BYTES", CHUNK)
    monkeypatch.setattr(readers, "STALL_TIMEOUT_S", 0.1)
    store = await store_of_six(jetstream, content(40 * CHUNK))
    take = ObjectReader._take
    versions = 1

    def replaced(obj: ObjectReader, message: JsMessage) -> bytes:
        nonlocal versions
        if versions == 1:
            versions = 2
            putting.append(asyncio.create_task(store.put("o", content(40 * CHUNK, 2))))
        return take(obj, message)

    following = ObjectReader._next

    async def slowly(obj: ObjectReader) -> JsMessage:
        if putting and not putting[0].done():
            await asyncio.wait(putting)
        return await following(obj)

    monkeypatch.setattr(ObjectReader, "_next", slowly)
    monkeypatch.setattr(ObjectReader, "_take", replaced)
    for get in (store.get_bytes("o"), store.get_file("o", tmp_path / "f")):
        putting: list[asyncio.Task[object]] = []
        versions = 1
        await store.put("o", content(40 * CHUNK))
        got = await get
        assert versions == 2
        assert (got if isinstance(got, bytes) else (tmp_path / "f").read_bytes()) == content(40 * CHUNK, 2)
    assert os.listdir(tmp_path) == ["f"]


async def test_a_certain_version_is_got_or_said_to_be_gone(jetstream: JetStream) -> None:
    store = await store_of_six(jetstream)
    old = await store.info("o")
    assert await store.get_bytes(old) == content(SIZE)
    new = await store.put("o", content(300_000, 2))
    with pytest.raises(ObjectChanged):
        await store.get_bytes(old)
    assert await store.get_bytes(new) == content(300_000, 2)
    await store.delete("o")
    with pytest.raises(ObjectChanged):
        await store.get_bytes(new)
    with pytest.raises(ObjectNotFound):
        await store.get_bytes(await store.info("o", deleted=True))


async def test_get_notices_stale_metadata_first(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is replaced between the question and the first chunk."""
    store = await store_of_six(jetstream)
    old = await store._index.find("o", timeout=5.0)
    await store.put("o", content(300_000, 2))
    real, asked = store._index.find, []

    async def lagging(name: str, **arguments: object) -> object:
        asked.append(name)
        return old if len(asked) == 1 else await real(name, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store._index, "find", lagging)
    async with store.get("o") as obj:
        assert obj.info.size == 300_000
        assert b"".join([chunk async for chunk in obj]) == content(300_000, 2)


# ---------------------------------------------------------------- files


async def test_a_file_appears_when_it_is_complete(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream, content(3_000_000))
    target = tmp_path / "out.bin"
    target.write_bytes(b"before")
    seen: list[bytes] = []
    info = await store.get_file("o", target, progress=lambda _: seen.append(target.read_bytes()))
    assert set(seen) == {b"before"}
    assert info == await store.info("o")
    assert target.read_bytes() == content(3_000_000)
    await store.put("nothing", b"")
    await store.get_file("nothing", str(target))
    assert target.read_bytes() == b""
    assert os.listdir(tmp_path) == ["out.bin"]


async def test_a_file_that_cannot_be_had_leaves_nothing(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream)
    (tmp_path / "out.bin").write_bytes(b"before")
    with pytest.raises(IsADirectoryError):
        await store.get_file("o", tmp_path)
    with pytest.raises(FileNotFoundError):
        await store.get_file("o", tmp_path / "missing" / "f")
    await store._index.stream.delete_message((await sequences(store))[3])
    for resume in (False, True):
        with pytest.raises(DigestMismatch):
            await store.get_file("o", tmp_path / "out.bin", resume=resume)
        assert os.listdir(tmp_path) == ["out.bin"]
    assert (tmp_path / "out.bin").read_bytes() == b"before"


async def test_a_cancelled_get_file_leaves_nothing(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream, content(50_000))
    target = tmp_path / "out.bin"

    async def get() -> object:
        return await store.get_file("o", target)

    async for run in interruptions(get):
        run.check()
        left = os.listdir(tmp_path)
        assert left in ([], ["out.bin"])
        if left:
            assert target.read_bytes() == content(50_000)
            target.unlink()


class Broken(Exception):
    pass


async def test_a_get_goes_on_where_the_last_one_ended(
    jetstream: JetStream, tmp_path: pathlib.Path, nats_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "WRITE_BYTES", 1)
    data = content(4_000_000)
    store = await store_of_six(jetstream, data)
    target = tmp_path / "out.bin"

    def fail(progress: Progress) -> None:
        if progress.bytes > 3_000_000:
            raise Broken

    with pytest.raises(Broken):
        await store.get_file("o", target, resume=True, progress=fail)
    (partial,) = (tmp_path / name for name in os.listdir(tmp_path))
    assert partial.name == f"out.bin.{(await store.info('o')).nuid}.partial"
    assert 3_000_000 < partial.stat().st_size < 4_000_000
    before = nats_client.stats.in_bytes
    reported: list[Progress] = []
    await store.get_file("o", target, resume=True, progress=reported.append)
    assert reported[0].bytes > 3_000_000
    assert reported[-1].bytes == reported[-1].total == 4_000_000
    assert nats_client.stats.in_bytes - before < 1_200_000
    assert target.read_bytes() == data
    assert os.listdir(tmp_path) == ["out.bin"]


async def test_get_does_not_use_wrong_kept_content(jetstream: JetStream, tmp_path: pathlib.Path) -> None:
    store = await store_of_six(jetstream)
    target = tmp_path / "out.bin"
    partial = tmp_path / f"out.bin.{(await store.info('o')).nuid}.partial"
    for kept in (content(CHUNK, 7), content(SIZE, 7)):
        partial.write_bytes(kept)
        with pytest.raises(DigestMismatch):
            await store.get_file("o", target, resume=True)
        assert os.listdir(tmp_path) == []
    for kept in (content(SIZE)[:CHUNK], content(SIZE), content(SIZE) + b"and more", b""):
        partial.write_bytes(kept)
        await store.get_file("o", target, resume=True)
        assert target.read_bytes() == content(SIZE)
        assert os.listdir(tmp_path) == ["out.bin"]
        target.unlink()
    partial.write_bytes(content(SIZE)[:CHUNK])
    await store.put("o", content(10, 2))
    await store.get_file("o", target, resume=True)
    assert target.read_bytes() == content(10, 2)
