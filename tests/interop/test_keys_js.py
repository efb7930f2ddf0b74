"""Buckets of natsproto and of nats.js are the same buckets."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any, cast

import pytest

from natsproto.errors import KeyDeleted
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream.kv import Base64Keys
from natsproto.testing import Server
from tests.interop.node import Node, Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("nats.js")]  # installed once

LONG = 20.0


async def test_nats_js_reads_what_we_write(nats_server: Server, jetstream: JetStream, node: Node) -> None:
    kv = await jetstream.create_key_value(
        bucket="ours", history=5, description="from Python", limit_marker_ttl=1, metadata={"a": "b"}
    )
    await kv.put("a/b=c_d-1.x", b"\x00\xff\n\r")
    await kv.create("created", "ä".encode())
    await kv.update("created", b"second", 2)
    await kv.put("gone", b"1")
    await kv.delete("gone")
    await kv.put("purged", b"1")
    await kv.purge("purged")
    await kv.put("empty", b"")
    async with kv.watch("expired") as watcher:
        await kv.create("expired", b"soon", ttl=1)
        assert [(await watcher.next(LONG)).operation for _ in range(2)] == ["PUT", "PURGE"]
    async with node.running("keys.cjs", nats_server.url, "ours", "read") as program:
        lines = printed_entries(program)
        said = {what: value async for what, value in lines_until(lines, "watching")}
        # nats.js (3.4) also lists what has expired.
        assert sorted({*said["keys"]} - {"expired"}) == ["a/b=c_d-1.x", "created", "empty"]
        assert [
            (key, b64decode(value), revision, operation)
            for key, value, revision, operation, _ in said["history"]
            if key != "expired"  # its marker goes after a second
        ] == [
            ("a/b=c_d-1.x", b"\x00\xff\n\r", 1, "PUT"),
            ("created", "ä".encode(), 2, "PUT"),
            ("created", b"second", 3, "PUT"),
            ("gone", b"1", 4, "PUT"),
            ("gone", b"", 5, "DEL"),
            ("purged", b"", 7, "PURGE"),
            ("empty", b"", 8, "PUT"),
        ]
        assert b64decode(said["get a/b=c_d-1.x"][1]) == b"\x00\xff\n\r"
        assert (said["get gone"][3], said["get purged"][3]) == ("DEL", "PURGE")
        assert said["get expired"] is None or said["get expired"][3] == "PURGE"
        assert said["get never"] is None
        assert said["revision"][:3] == ["created", "w6Q=", 2]
        assert said["create"] is not None
        assert said["status"][:2] + said["status"][3:5] == ["ours", 5, "file", "from Python"]
        await kv.put("watched.a", b"1")
        await kv.delete("watched.a")
        entries = [await anext(lines) for _ in range(2)]
        await kv.purge("watched.a")  # takes away what was not told yet
        entries += [line async for line in lines]
        assert [(what, value[0], value[3]) for what, value in entries] == [
            ("entry", "watched.a", "PUT"),
            ("entry", "watched.a", "DEL"),
            ("entry", "watched.a", "PURGE"),
        ]


async def test_we_read_what_nats_js_writes(nats_server: Server, jetstream: JetStream, node: Node) -> None:
    await node.run("keys.cjs", nats_server.url, "theirs", "write")
    kv = await jetstream.key_value("theirs")
    status = await kv.status()
    assert (status.history, status.config.description, status.limit_marker_ttl) == (5, "from JavaScript", 1)
    assert (await kv.get("a/b=c_d-1.x")).value == b"\x00\xff\n\r"
    assert [entry.value for entry in await kv.history("created")] == ["ä".encode(), b"second"]
    assert (await kv.get("created", revision=2)).value == "ä".encode()
    assert (await kv.get("empty")).value == b""
    for key, operation in (("gone", "DEL"), ("purged", "PURGE")):
        with pytest.raises(KeyDeleted) as deleted:
            await kv.get(key)
        assert deleted.value.operation == operation
    async with kv.watch() as watcher, asyncio.timeout(LONG):
        seen = {entry.key: entry.operation async for entry in watcher.initial()}
        assert seen | {"expires": ""} == {
            "a/b=c_d-1.x": "PUT",
            "created": "PUT",
            "gone": "DEL",
            "purged": "PURGE",
            "empty": "PUT",
            "expires": "",
        }
        if seen.get("expires") == "PUT":
            gone = await watcher.next()
            assert (gone.key, gone.operation) == ("expires", "PURGE")
    assert await kv.create("gone", b"ours") > 0
    # The same bucket made by us: nothing differs but what nats.js (3.4) leaves out of ADR-8.
    ours, made = (await jetstream.update_key_value(status.config)).stream.cached_info.config, status.stream.config
    assert [f.name for f in fields(StreamConfig) if getattr(ours, f.name) != getattr(made, f.name)] == ["deny_delete"]


KEYS = ["a", "ab", "abc", "with space.and:more", "user:1", "a???", "x.y.z"]


async def test_base64_keys_are_those_of_nats_js(nats_server: Server, jetstream: JetStream, node: Node) -> None:
    await node.run("codec.cjs", nats_server.url, "theirs", "write", *KEYS)
    padded = await jetstream.key_value("theirs", key_codec=Base64Keys(padded=True))
    for codec in (Base64Keys(), Base64Keys(padded=True)):  # both list what is there
        kv = await jetstream.key_value("theirs", key_codec=codec)
        assert [key async for key in kv.keys(">")] == KEYS
    for key in KEYS:
        assert (await padded.get(key)).value == key.encode()
        await padded.put(key, b"ours")
    assert await node.run("codec.cjs", nats_server.url, "theirs", "read", *KEYS) == ["ours"] * len(KEYS)


async def printed_entries(program: Program) -> AsyncIterator[tuple[str, Any]]:
    async for line in program.lines():
        said = cast("dict[str, Any]", line)
        yield said["what"], said["value"]


async def lines_until(lines: AsyncIterator[tuple[str, Any]], last: str) -> AsyncIterator[tuple[str, Any]]:
    async for what, value in lines:
        yield what, value
        if what == last:
            return
