"""What nats-py puts into an object store we get, and the other way round, byte for byte."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import ObjectMeta
from nats.js.errors import ObjectNotFoundError

from natsproto.errors import ObjectNotFound
from natsproto.jetstream._context import JetStream
from natsproto.testing import Server
from tests.objectstore.helpers import CHUNK, content, holds_only, listed_names

SIZES = [0, 1, CHUNK, CHUNK + 1, 8 * 2**20]
NAMES = ["a/b/c", "a b", "🌸", " ", "a.b>*", "名前", "x" * 500]


@asynccontextmanager
async def other(server: Server) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def test_objects_of_every_size_cross_over(nats_server: Server, jetstream: JetStream) -> None:
    async with other(nats_server) as js:
        theirs = await js.create_object_store("files")
        ours = await jetstream.object_store("files")
        for size in SIZES:
            data = content(size, size)
            await theirs.put("theirs", io.BytesIO(data))
            assert await ours.get_bytes("theirs") == data, size
            info = await ours.put("ours", data)
            got = await theirs.get("ours")
            assert got.data == data, size
            assert (got.info.size, got.info.chunks, got.info.digest) == (info.size, info.chunks, info.digest)
            assert (await ours.info("theirs")).digest == info.digest
            await ours.put("theirs", b"over")
            await theirs.put("ours", b"over")
            await holds_only(ours, ["theirs", "ours"])


@pytest.mark.timeout(120)
async def test_a_big_object_of_theirs_is_got(nats_server: Server, jetstream: JetStream) -> None:
    # Not the other way round: nats-py takes half a minute to get it.
    async with other(nats_server) as js:
        theirs = await js.create_object_store("files")
        data = content(64 * 2**20)
        await theirs.put("big", data)
        assert await (await jetstream.object_store("files")).get_bytes("big") == data


async def test_names_and_deletions_cross_over(nats_server: Server, jetstream: JetStream) -> None:
    ours = await jetstream.create_object_store(bucket="files", storage="memory")
    async with other(nats_server) as js:
        theirs = await js.object_store("files")
        for index, name in enumerate(NAMES):
            await theirs.put(f"{name}t", b"%d" % index)
            await ours.put(f"{name}o", b"%d" % index)
        wanted = [f"{name}{who}" for name in NAMES for who in "to"]
        assert await listed_names(ours) == [info.name for info in await theirs.list()] == wanted
        for index, name in enumerate(NAMES):
            assert await ours.get_bytes(f"{name}t") == b"%d" % index
            assert (await theirs.get(f"{name}o")).data == b"%d" % index
        await theirs.delete("a bo")
        await ours.delete("a bt")
        with pytest.raises(ObjectNotFound):
            await ours.get_bytes("a bo")
        with pytest.raises(ObjectNotFoundError):
            await theirs.get("a bt")
        assert (await ours.info("a bo", deleted=True)).deleted
        await holds_only(ours, [name for name in wanted if not name.startswith("a b")])
        await theirs.put("said", b"1", ObjectMeta(description="d", headers={"A": "1", "B": ["2", "3"]}))
        said = await ours.info("said")
        assert (said.description, said.headers) == ("d", {"A": ("1",), "B": ("2", "3")})
        await ours.add_link("link", "🌸o")
        assert (await theirs.get("link")).data == b"2"
        info = await theirs.get_info("link")
        assert info.is_link()
