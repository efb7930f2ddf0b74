"""kv.modify: a change in place that loses no change of others."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto import Client, sync
from natsproto.errors import RequestTimeout
from natsproto.jetstream import JetStream
from natsproto.jetstream.kv import KeyValue, Operation
from natsproto.testing import Server
from tests.kit.second_responder import deposed_leader


def increment(value: bytes | None) -> bytes:
    return b"%d" % (int(value or b"0") + 1)


@pytest.fixture
async def kv(jetstream: JetStream) -> KeyValue[bytes]:
    return await jetstream.create_key_value(bucket="b", storage="memory", limit_marker_ttl=10)


async def test_many_clients_count_every_change(nats_server: Server, kv: KeyValue[bytes]) -> None:
    async def count(nc: Client) -> None:
        mine = await nc.jetstream().key_value("b")
        for _ in range(25):
            await mine.modify("k", increment)

    async with natsproto.connect(nats_server.url) as one, natsproto.connect(nats_server.url) as two:
        await asyncio.gather(count(one), count(one), count(two), count(two))
    assert (await kv.get("k")).value == b"100"


async def test_modify_returns_the_entry_and_deletes(kv: KeyValue[bytes]) -> None:
    entry = await kv.modify("k", increment)
    assert (entry.key, entry.value, entry.revision, entry.is_deleted) == ("k", b"1", 1, False)
    gone = await kv.modify("k", lambda _: Operation.DELETE)
    assert (gone.revision, gone.is_deleted) == (2, True)
    seen: list[bytes | None] = []
    await kv.modify("k", lambda value: [seen.append(value), b"new"][1] or b"", ttl=5)  # type: ignore[func-returns-value]
    assert seen == [None]
    assert (await kv.get("k")).value == b"new"
    typed = kv.typed(dict)
    assert (await typed.modify("t", lambda value: {**(value or {}), "n": 1})).value == {"n": 1}


async def test_bad_changes_write_nothing(kv: KeyValue[bytes]) -> None:
    async def later(_: bytes | None) -> bytes:
        return b""

    for wrong in (later, lambda value: later(value)):
        with pytest.raises(TypeError, match="fn"):
            await kv.modify("k", wrong)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        await kv.modify("k", lambda _: b"%d" % (1 // 0))
    assert await kv.history("k") == []


async def test_modify_ends_when_others_are_always_faster(kv: KeyValue[bytes], nats_server: Server) -> None:
    with sync.connect(nats_server.url) as nc:
        rival = nc.jetstream().key_value("b")

        def slow(value: bytes | None) -> bytes:
            rival.put("k", b"rival")
            return increment(None)

        with pytest.raises(RequestTimeout, match="other clients"):
            await kv.modify("k", slow, timeout=0.5)
    assert (await kv.get("k")).value == b"rival"


@pytest.mark.parametrize("code", [10071, 10164])
async def test_modify_counts_once_beside_a_deposed_leader(
    nats_client: Client, nats_server: Server, kv: KeyValue[bytes], code: int
) -> None:
    await kv.put("k", b"0")
    async with natsproto.connect(nats_server.url) as other, deposed_leader(other, kv.stream) as leader:
        for number in range(20):
            leader.truth = 0.01 if number % 2 else None
            leader.refusals.append((code, number))
            await kv.modify("k", increment)
    assert (await kv.get("k")).value == b"20"
