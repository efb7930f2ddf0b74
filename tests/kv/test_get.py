"""A get says at once what is wrong with a reply, and leaves nothing but reading what is right for later."""

from __future__ import annotations

import copy
import json
import pickle
from contextvars import ContextVar

import pytest

import natsproto
from natsproto import Client, Message
from natsproto.errors import (
    ApiError,
    BucketNotFound,
    ConfigError,
    InvalidReply,
    InvalidSubject,
    KeyDeleted,
    KeyNotFound,
    RequestTimeout,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.kv import KeyValue, KeyValueEntry
from natsproto.jetstream.kv import _entry as entries
from natsproto.testing import run_cluster

STORED = (
    b"NATS/1.0\r\nNats-Stream: KV_b\r\nNats-Subject: $KV.b.k\r\nNats-Sequence: 7\r\n"
    b"Nats-Time-Stamp: 2024-01-02T03:04:05.678901234Z\r\n\r\n"
)


async def play_direct_get(nc: Client, block: bytes, payload: bytes = b"v") -> KeyValue:
    """A bucket behind an API of our own, which answers every direct get like this; its leader has no message."""

    async def answer(request: Message) -> None:
        assert request.reply is not None
        if request.subject == "PLAYED.STREAM.MSG.GET.KV_b":
            await request.respond(b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}')
            return
        assert (request.subject, request.data) == ("PLAYED.DIRECT.GET.KV_b.$KV.b.k", b"")
        head = b"HPUB %b %d %d\r\n" % (request.reply.encode(), len(block), len(block) + len(payload))
        nc._outbox.put(head, block + payload)  # what no client may write

    nc.subscribe("PLAYED.>", cb=answer)
    return await nc.jetstream(prefix="PLAYED", timeout=5).key_value("b", bind=True)


async def test_entry_is_what_the_server_said(nats_client: Client) -> None:
    entry = await (await play_direct_get(nats_client, STORED)).get("k")
    assert (entry.value, entry.size, entry.is_deleted, len(entry.headers)) == (b"v", 1, False, 0)
    assert (entry.bucket, entry.key, entry.subject, entry.revision, entry.delta) == ("b", "k", "$KV.b.k", 7, 0)
    assert entry.created == Timestamp.parse("2024-01-02T03:04:05.678901234Z")
    assert repr(entry) == "KeyValueEntry(bucket='b', key='k', revision=7, data=b'v')"


@pytest.mark.parametrize("data", [b"v", b""])
@pytest.mark.parametrize(
    "block",
    [
        STORED.replace(b": 7", b": seven"),
        STORED.replace(b": 7", b": "),
        STORED.replace(b": 7", b": -7"),
        STORED.replace(b": 7", b": " + b"7" * 21),
        STORED.replace(b": 7", b": " + b"7" * 5000),
        STORED.replace(b"Nats-Sequence: 7\r\n", b""),
        STORED.replace(b"Nats-Time-Stamp", b"Nats-Time"),
        STORED[: STORED.index(b"Nats-Time")] + b"\r\n",
        b"NATS/1.0\r\nNats-Stream: KV_b\r\n\r\n",
    ],
    ids=lambda block: block[70:90].decode() if len(block) > 90 else "short",
)
async def test_reply_that_is_no_message_is_invalid_at_once(nats_client: Client, block: bytes, data: bytes) -> None:
    kv = await play_direct_get(nats_client, block, data)
    with pytest.raises(InvalidReply, match="direct get"):
        await kv.get("k")


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (b"NATS/1.0 404 Message Not Found\r\n\r\n", KeyNotFound),
        (b"NATS/1.0 500 disk on fire\r\n\r\n", ApiError),
        (b"NATS/1.0\r\nKV-Operation: DEL\r\n" + STORED[10:], KeyDeleted),
    ],
)
async def test_what_is_no_value_is_reported_at_once(nats_client: Client, block: bytes, kind: type[Exception]) -> None:
    kv = await play_direct_get(nats_client, block, b"")
    with pytest.raises(kind):
        await kv.get("k")


async def test_absence_on_a_replica_is_confirmed(nats_client: Client) -> None:
    """A replica that is refilled does not have what the leader has."""
    js = nats_client.jetstream(prefix="PLAYED", timeout=5)

    async def answer(request: Message) -> None:
        if "MSG.GET" in request.subject:
            stored = {"subject": "$KV.b.k", "seq": 7, "data": "dg==", "time": "2024-01-02T03:04:05Z"}
            await request.respond(json.dumps({"message": stored}).encode())
        else:
            head = b"HPUB %b 27 27\r\n" % (request.reply or "").encode()
            nats_client._outbox.put(head, b"NATS/1.0 404 No Results\r\n\r\n")

    nats_client.subscribe("PLAYED.>", cb=answer)
    kv = await js.key_value("b", bind=True)
    assert (await kv.get("k")).value == b"v"


@pytest.mark.parametrize(
    "block",
    [STORED.replace(b"2024-01-02T03:04:05.678901234Z", b"yesterday"), STORED.replace(b"05.678901234Z", b"\r05Z")],
)
async def test_time_that_is_none_fails_when_it_is_read(nats_client: Client, block: bytes) -> None:
    entry = await (await play_direct_get(nats_client, block)).get("k")
    assert (entry.revision, entry.value) == (7, b"v")
    with pytest.raises(InvalidReply):
        entry.created  # noqa: B018


async def test_empty_value_with_a_sequence_like_a_status(nats_client: Client) -> None:
    entry = await (await play_direct_get(nats_client, STORED.replace(b": 7", b": 503"), b"")).get("k")
    assert (entry.revision, entry.value) == (503, b"")


async def test_reply_about_another_key_is_reported_as_it_is(nats_client: Client) -> None:
    """A mirror that transforms subjects, bound without asking."""
    entry = await (await play_direct_get(nats_client, STORED.replace(b"$KV.b.k", b"$KV.c.k"))).get("k")
    assert entry.subject == "$KV.c.k"


async def test_direct_get_and_leader_give_the_same(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", history=2, storage="memory")
    await kv.put("plain", b"v")
    await jetstream.publish("$KV.b.headed", b"v", headers={"Nats-Stream": "other", "a": "b"})
    said = {"Nats-Stream": "KV_b", "Nats-Subject": "$KV.b.forged", "Nats-Sequence": "666"}
    said["Nats-Time-Stamp"] = "1999-01-01T00:00:00Z"
    await jetstream.publish("$KV.b.forged", b"v", headers=said)
    for key in ("plain", "headed", "forged"):
        entry, other = await kv.get(key), await kv.get(key, direct=False)
        assert entry == other
        assert (entry.headers, entry.delta, entry.key) == (other.headers, other.delta, key)
    assert entry.headers["Nats-Sequence"] == "666"
    await kv.delete("plain")
    with pytest.raises(KeyDeleted):
        await kv.get("plain")


def _pickled(entry: KeyValueEntry) -> KeyValueEntry:
    again = pickle.loads(pickle.dumps(entry))
    assert isinstance(again, KeyValueEntry)
    return again


async def test_entry_is_copied_and_pickled(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    await kv.put("k", b"v")
    for copied in (copy.copy, copy.deepcopy, _pickled):
        entry = await kv.get("k")
        assert copied(entry) == await kv.get("k")
        assert copied(entry) == entry
    assert not hasattr(entry, "no_such_thing")
    with pytest.raises(AttributeError, match="no attribute 'no_such_thing'"):
        entry.no_such_thing  # type: ignore[attr-defined]  # noqa: B018


async def test_get_when_direct_get_was_switched_off(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    await kv.put("k", b"v")
    assert (await kv.get("k")).value == b"v"
    config = (await kv.stream.info()).config
    other = await jetstream.stream("KV_b")
    await jetstream.update_stream(config.replace(allow_direct=False))
    assert not (await other.info()).config.allow_direct
    for _ in range(2):
        assert (await kv.get("k")).value == b"v"
    with pytest.raises(KeyNotFound):
        await kv.get("nothing")


async def test_bad_key_is_refused_every_time_and_asks_nobody(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    sent = nats_client.stats.out_msgs
    for _ in range(2):
        for key in ("", "a b", "a..b", "*", ">", ".a"):
            with pytest.raises(InvalidSubject, match="key"):
                await kv.get(key)
        for thing in (None, 5, ["k"], b"k"):
            with pytest.raises(TypeError, match="key must be a str"):
                await kv.get(thing)  # type: ignore[call-overload]
        for timeout in (0, 0.0, -1.0, float("nan"), float("inf"), True):
            with pytest.raises(ConfigError, match="timeout"):
                await kv.get("k", timeout=timeout)
    assert nats_client.stats.out_msgs == sent


async def test_timeout_says_what_was_asked_and_for_how_long(nats_client: Client) -> None:
    kv = await nats_client.jetstream(prefix="SILENT").key_value("b", bind=True)
    async with nats_client.subscribe("SILENT.>"):
        with pytest.raises(RequestTimeout, match=r"request to 'SILENT\.DIRECT\.GET\.KV_b\.\$KV\.b\.k'.*0\.05 s"):
            await kv.get("k", timeout=0.05)


async def test_get_waits_its_turn_on_a_congested_connection(jetstream: JetStream, nats_client: Client) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    await kv.put("k", b"v")
    for _ in range(40):
        nats_client.publish_nowait("elsewhere", b"x" * 10_000)
    assert nats_client._outbox.must_wait
    assert (await kv.get("k")).value == b"v"
    assert not nats_client._outbox.must_wait


TENANT: ContextVar[str] = ContextVar("TENANT")


class OfTenant:
    """Keys of which each tenant has its own."""

    def encode(self, key: str) -> str:
        return f"{TENANT.get()}.{key}"

    def decode(self, key: str) -> str:
        return key.partition(".")[2]

    def encode_filter(self, pattern: str) -> str:
        return self.encode(pattern)


async def test_key_codec_is_asked_every_time(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value(bucket="b", storage="memory", key_codec=OfTenant())
    for _ in range(2):
        for tenant in ("a", "b"):
            TENANT.set(tenant)
            await kv.put("k", tenant.encode())
        for tenant in ("a", "b"):
            TENANT.set(tenant)
            entry = await kv.get("k")
            assert (entry.value, entry.key) == (tenant.encode(), "k")


async def test_what_is_remembered_of_keys_is_bounded(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_CACHED_GETS", 8)
    kv = await jetstream.create_key_value(bucket="b", storage="memory")
    for number in range(20):
        await kv.put(f"k.{number}", b"%d" % number)
    for number in (*range(20), *range(20)):
        assert (await kv.get(f"k.{number}")).value == b"%d" % number
        assert len(kv._bucket._gets) <= 8


async def test_get_with_default(jetstream: JetStream) -> None:
    kv = await jetstream.create_key_value("defaults", history=3)
    revision = await kv.put("a", b"1")
    for direct in (True, False):
        entry = await kv.get("a", default=None, direct=direct)
        assert entry is not None
        assert entry.value == b"1"
        assert await kv.get("b", default=7, direct=direct) == 7
    await kv.delete("a")
    assert await kv.get("a", default=None) is None
    assert await kv.get("a", default=None, revision=revision + 5) is None
    with pytest.raises(KeyDeleted):
        await kv.get("a")
    gone = await jetstream.key_value("nowhere", bind=True)
    with pytest.raises(BucketNotFound):
        await gone.get("a", default=None)


@pytest.mark.slow
async def test_reads_of_the_leader_see_own_writes() -> None:
    """Replicas may be behind: their values are older ones, never others."""
    async with run_cluster() as cluster, natsproto.connect(cluster.urls) as nc:
        js = nc.jetstream()
        kv = await js.create_key_value("three", num_replicas=3)
        single = await js.create_key_value("one")
        for number in range(200):
            value = b"%d" % number
            revision, own = await kv.put("k", value), await single.put("k", value)
            entry = await kv.get("k", direct=False)
            assert (entry.revision, entry.data) == (revision, value)
            assert (await kv.stream.get_last_message("$KV.three.k", direct=False)).seq == revision
            assert (await kv.get("k")).revision <= revision
            assert (await single.get("k")).revision == own
