"""Chunks that belong to no object: a program was killed while it put one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from natsproto import Client
from natsproto.errors import ConfigError, InvalidReply
from natsproto.jetstream import StreamSource
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.batch_get import StoredMessages
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.testing import Server
from tests.objectstore.helpers import CHUNK, chunks, content, holds_only, listed_names

PUT = """
import asyncio, sys
import natsproto


async def endless():
    for _ in range(5):
        yield bytes(128 * 1024)
    await asyncio.Event().wait()


async def main():
    async with natsproto.connect(sys.argv[1]) as nc:
        store = await nc.jetstream().object_store("files")
        await store.put(sys.argv[2], endless(), progress=lambda told: print(told.chunks, flush=True))


asyncio.run(main())
"""


async def abandon(server: Server, store: ObjectStore, name: str) -> None:
    """A program puts an object and is killed half way."""
    before = await chunks(store)
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUT, server.url, name, stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    try:
        async with asyncio.timeout(40):
            while await program.stdout.readline() != b"5\n":
                pass
            while sum((await chunks(store)).values()) < sum(before.values()) + 5:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
    finally:
        program.kill()
        await program.wait()


@pytest.mark.parametrize("batched", [False, True], ids=["window", "fast ingest"])
async def test_orphans_of_a_killed_program_are_removed(
    nats_server: Server, jetstream: JetStream, batched: bool
) -> None:
    store = await jetstream.create_object_store(bucket="files", allow_batched=batched)
    data = content(3 * CHUNK + 1)
    for name in ("stays", "half", "gone"):
        await store.put(name, data)
    await store.delete("gone")
    await store.add_link("link", "stays")
    assert await store.purge_orphans(older_than=0) == 0
    await abandon(nats_server, store, "half")
    assert sorted((await chunks(store)).values()) == [4, 4, 5]
    assert await store.purge_orphans() == 0
    assert await store.purge_orphans(older_than=3600) == 0
    assert await store.purge_orphans(older_than=1e300) == 0
    assert await store.purge_orphans(older_than=0) == 5
    await holds_only(store, ["stays", "half"])
    assert await store.get_bytes("half") == data == await store.get_bytes("link")
    assert await store.purge_orphans(older_than=0) == 0


async def test_orphans_of_a_deleted_object(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    info = await store.put("o", b"1")
    await store.delete("o")
    await jetstream.publish(f"$O.files.C.{info.nuid}", b"1")  # whoever deleted it was killed before it was removed
    assert await store.purge_orphans(older_than=0) == 1
    assert await chunks(store) == {}
    assert await listed_names(store, deleted=True) == ["o"]


async def test_an_object_that_is_being_put_is_safe(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files")
    half, resume = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield content(CHUNK)
        half.set()
        await resume.wait()
        yield content(CHUNK)

    putting = asyncio.create_task(store.put("o", source()))
    await half.wait()
    async with asyncio.timeout(20):
        while not await chunks(store):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    assert await store.purge_orphans(older_than=60) == 0
    resume.set()
    await putting
    assert await store.get_bytes("o") == 2 * content(CHUNK)


async def test_orphans_spare_objects_put_and_renamed(
    jetstream: JetStream, nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await jetstream.create_object_store(bucket="files")
    await store.put("name 0", b"1")
    await abandon(nats_server, store, "half")
    reads: list[bool] = []
    get_batch = Stream.get_batch

    def read(stream: Stream, *, direct: bool = True, **args: Any) -> StoredMessages:
        async def change_first() -> AsyncIterator[Any]:
            reads.append(direct)
            await store.update_meta(f"name {len(reads) - 1}", rename=f"name {len(reads)}")
            await store.put(f"new {len(reads)}", b"2")
            async for batch in get_batch(stream, direct=direct, **args).batches():
                yield batch

        return StoredMessages(change_first(), "messages")  # type: ignore[arg-type]  # a generator

    with monkeypatch.context() as patch:
        patch.setattr(Stream, "get_batch", read)
        assert await store.purge_orphans(older_than=0) == 5
    assert reads == [True, False]
    await holds_only(store, ["name 2", "new 1", "new 2"])
    assert await store.get_bytes("name 2") == b"1"


async def test_orphans_stay_with_unreadable_metadata(jetstream: JetStream, nats_client: Client) -> None:
    store = await jetstream.create_object_store(bucket="files")
    await jetstream.publish("$O.files.C.orphan", b"1")
    await jetstream.publish("$O.files.M.eHg=", b"{")
    with pytest.raises(InvalidReply):
        await store.purge_orphans(older_than=0)
    assert await chunks(store) == {"orphan": 1}
    await jetstream.create_stream(name="OBJ_copy", mirror=StreamSource(name="OBJ_files"))
    with pytest.raises(ConfigError, match="is a mirror or has sources"):
        await (await jetstream.object_store("copy")).purge_orphans(older_than=0)
    for wrong in (-1, float("nan"), True):
        with pytest.raises(ConfigError, match="older_than"):
            await store.purge_orphans(older_than=wrong)
