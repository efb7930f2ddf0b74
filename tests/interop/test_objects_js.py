"""What nats.js puts into an object store we get, and the other way round, byte for byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from natsproto.errors import ObjectLinkError, ObjectNotFound
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.objectstore import ObjectLink
from natsproto.testing import Server
from tests.interop.node import Node, Program
from tests.objectstore.helpers import CHUNK, content, holds_only, listed_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("nats.js")]  # installed once

SIZES = [0, 1, CHUNK, CHUNK + 1, 64 * 2**20]
NAMES = ["a/b/c", "a b", " ", "a.b>*", "~?+", "x" * 500]
"""nats.js 3.4.0 can neither put nor get an object whose name is not Latin-1, and writes Latin-1 names in another way
than every other client. Nobody else is needed to see what is right there: see the tests against nats-py.
"""


class Other:
    """A program of nats.js that does what it is told."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program, self.folder = program, folder

    async def __call__(self, verb: str, bucket: str, **more: object) -> Any:
        writer = self._program.process.stdin
        assert writer is not None
        writer.write(json.dumps({"verb": verb, "bucket": bucket, **more}).encode() + b"\n")
        await writer.drain()
        answer = cast("dict[str, Any]", await self._program.line())
        assert "error" not in answer, answer["error"]
        return answer["value"]

    async def put(self, bucket: str, name: str, data: bytes, **meta: object) -> Any:
        (self.folder / "in").write_bytes(data)
        return await self("put", bucket, name=name, file=str(self.folder / "in"), meta=meta)

    async def get(self, bucket: str, name: str) -> bytes | None:
        found = await self("get", bucket, name=name, file=str(self.folder / "out"))
        return (self.folder / "out").read_bytes() if found else None


@asynccontextmanager
async def other(node: Node, server: Server, folder: Path) -> AsyncIterator[Other]:
    async with node.running("objects.cjs", server.url) as program:
        yield Other(program, folder)


async def test_objects_of_every_size_cross_over(
    nats_server: Server, jetstream: JetStream, node: Node, tmp_path: Path
) -> None:
    ours = await jetstream.create_object_store(bucket="files", storage="file")
    async with other(node, nats_server, tmp_path) as js:
        for size in SIZES:
            data = content(size, size)
            said = await js.put("files", "theirs", data)
            assert await ours.get_bytes("theirs") == data, size
            info = await ours.info("theirs")
            assert (info.size, info.chunks, info.digest) == (said["size"], said["chunks"], said["digest"])
            mine = await ours.put("ours", data)
            assert await js.get("files", "ours") == data, size
            found = await js("info", "files", name="ours")
            assert (found["size"], found["chunks"], found["digest"]) == (mine.size, mine.chunks, mine.digest)
            assert mine.digest.rstrip("=") == info.digest.rstrip("=")
            await ours.put("theirs", b"over")  # each removes what the other has put before
            await js.put("files", "ours", b"over")
            await holds_only(ours, ["theirs", "ours"])


async def test_names_and_what_is_said_of_objects_cross_over(
    nats_server: Server, jetstream: JetStream, node: Node, tmp_path: Path
) -> None:
    async with other(node, nats_server, tmp_path) as js:
        await js("create", "files", options={"description": "from JavaScript", "storage": "memory"})
        ours = await jetstream.object_store("files")
        for index, name in enumerate(NAMES):
            await js.put("files", f"{name}j", b"%d" % index)
            await ours.put(f"{name}p", b"%d" % index)
        wanted = [f"{name}{who}" for name in NAMES for who in "jp"]
        assert await listed_names(ours) == await js("list", "files") == wanted
        for index, name in enumerate(NAMES):
            assert await ours.get_bytes(f"{name}j") == b"%d" % index
            assert await js.get("files", f"{name}p") == b"%d" % index
        await ours.put("🌸", b"for its list")
        assert await js("list", "files") == [*wanted, "🌸"]

        headers = [["Color", "red"], ["Color", "blue"], ["Größe".encode("ascii", "ignore").decode(), "1"]]
        await js.put("files", "said", b"1", description="größe", metadata={"a": "ü"}, headers=headers)
        info = await ours.info("said")
        assert (info.description, info.metadata) == ("größe", {"a": "ü"})
        assert info.headers == {"Color": ("red", "blue"), "Gre": ("1",)}
        await ours.put("said", b"2", description="n", metadata={"b": "c"}, headers={"Color": ["red", "blue"]})
        found = await js("info", "files", name="said")
        assert (found["description"], found["metadata"], found["headers"]) == (
            "n",
            {"b": "c"},
            [["Color", ["red", "blue"]]],
        )
        status = await js("status", "files")
        assert (status["bucket"], status["description"], status["sealed"]) == ("files", "from JavaScript", False)
        assert (await ours.status()).description == "from JavaScript"


async def test_links_deletions_and_new_names_cross_over(
    nats_server: Server, jetstream: JetStream, node: Node, tmp_path: Path
) -> None:
    ours = await jetstream.create_object_store(bucket="files", storage="memory")
    await jetstream.create_object_store(bucket="more", storage="memory")
    async with other(node, nats_server, tmp_path) as js:
        await ours.put("o", content(300_000))
        theirs = await js("link", "files", name="their link", goal="o")
        assert theirs["link"] == {"bucket": "files", "name": "o"}
        mine = await ours.add_link("our link", "o")
        assert await ours.get_bytes("their link") == content(300_000)
        assert await js.get("files", "our link") == content(300_000)
        assert (await js("info", "files", name="our link"))["link"] == {"bucket": "files", "name": "o"}
        assert (await ours.info("their link")).link == mine.link
        await js("linkStore", "files", name="their store", goal="more")
        await ours.add_bucket_link("our store", "more")
        assert (await ours.info("their store")).link == ObjectLink(bucket="more")
        assert (await js("info", "files", name="our store"))["link"]["bucket"] == "more"
        with pytest.raises(ObjectLinkError):
            await ours.get_bytes("their store")

        for name in ("p", "q"):
            await ours.put(name, b"1")
        await js("rename", "files", name="p", to="p2")
        await ours.update_meta("q", rename="q2")
        assert await ours.get_bytes("p2") == b"1"
        assert await js.get("files", "q2") == b"1"
        with pytest.raises(ObjectNotFound):
            await ours.info("p")
        assert await js("info", "files", name="q") is None
        await js("delete", "files", name="p2")
        await ours.delete("q2")
        with pytest.raises(ObjectNotFound):
            await ours.get_bytes("p2")
        assert (await ours.info("p2", deleted=True)).deleted
        assert await js.get("files", "q2") is None
        assert (await js("info", "files", name="q2"))["deleted"]
        await holds_only(ours, ["o"])
