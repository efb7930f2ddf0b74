"""Refusals that are not certain: a deposed leader refuses a write that the stream has stored."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto.errors import WrongRevision
from natsproto.jetstream import JetStream
from natsproto.testing import Direction, End, FaultProxy, Server
from tests.kit.second_responder import deposed_leader


@pytest.mark.parametrize("code", [10071, 10164])
@pytest.mark.parametrize("truth", [0.01, None])
async def test_stored_update_is_no_wrong_revision(nats_server: Server, code: int, truth: float | None) -> None:
    async with natsproto.connect(nats_server.url) as nc, natsproto.connect(nats_server.url) as other:
        kv = await nc.jetstream().create_key_value(bucket="b", storage="memory")
        revision = await kv.put("k", b"0")
        async with deposed_leader(other, kv.stream) as leader:
            leader.truth = truth
            for number in range(1, 6):
                leader.refusals.append((code, revision - 1))
                revision = await kv.update("k", b"%d" % number, revision)
            entry = await kv.get("k")
    assert (entry.value, entry.revision, leader.refused) == (b"5", revision, 5)
    assert "Natsproto-Write" not in entry.headers


@pytest.mark.parametrize("code", [10071, 10164])
@pytest.mark.parametrize("truth", [0.01, None])
async def test_every_conditional_write_finds_itself(nats_server: Server, code: int, truth: float | None) -> None:
    """create, delete, purge, a lock and an atomic write, each refused by a deposed leader and stored."""
    async with natsproto.connect(nats_server.url) as nc, natsproto.connect(nats_server.url) as other:
        kv = await nc.jetstream().create_key_value(
            bucket="b", storage="memory", history=5, limit_marker_ttl=10, allow_atomic=True
        )
        first = await kv.put("k", b"0")
        async with deposed_leader(other, kv.stream) as leader:
            leader.truth = truth
            leader.refusals.append((code, 77))
            created = await kv.create("new", b"1")
            leader.refusals.append((code, first - 1))
            deleted = await kv.delete("k", revision=first)
            leader.refusals.append((code, first))
            purged = await kv.purge("k", revision=deleted)
            leader.refusals.append((code, purged))
            lock = kv.lock("lock", ttl=5)
            token = await lock.acquire(timeout=5)
            leader.refusals.append((code, created - 1))
            async with kv.atomic() as batch:
                await batch.update("new", b"2", created)
                await batch.put("other", b"3")
            await lock.release()
        assert leader.refusals == []
        assert [deleted, purged, token] == [created + 1, created + 2, created + 3]
        assert batch.revisions == {"new": token + 1, "other": token + 2}
        assert [(await kv.get(key)).value for key in ("new", "other")] == [b"2", b"3"]


async def test_update_of_an_expired_key_is_refused(jetstream: JetStream) -> None:
    """The server knows a lower revision than the client, and is right."""
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    revision = await kv.put("k", b"0")
    await kv.stream.purge()
    with pytest.raises(WrongRevision) as caught:
        await kv.update("k", b"1", revision)
    assert (caught.value.expected, caught.value.actual) == (revision, 0)


async def test_updates_have_ids_after_an_outage_only(nats_server: Server) -> None:
    """Two servers may answer a message then, and only the id tells whether a copy that is refused is stored."""
    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(nats_server.url) as direct,
        natsproto.connect(proxy.url, reconnect_wait=0.02) as nc,
    ):
        kv = await nc.jetstream().create_key_value(bucket="b", storage="memory", history=5)
        revisions = [await kv.put("k", b"")]
        for cut in (False, True, False):
            arrived = await direct.subscribe("$KV.b.k")
            await direct.flush()
            if cut:
                proxy.stall(Direction.TO_CLIENT)
            writing = asyncio.create_task(kv.update("k", b"", revisions[-1]))
            await arrived.next(timeout=5)
            if cut:
                proxy.cut(End.RST)
                proxy.heal()
            revisions.append(await writing)
        messages = [await kv.stream.get_message(revision) for revision in revisions]
    assert ["Nats-Msg-Id" in message.headers for message in messages] == [False, False, False, True]
