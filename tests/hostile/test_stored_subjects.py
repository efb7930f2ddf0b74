"""A server stores messages on literal subjects such as ``$KV.b.>``. What reads them never uses them as filters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import InvalidSubject, MessageNotFound
from natsproto.jetstream import JetStream
from natsproto.jetstream.kv import KeyValue, KeyValueNotice
from natsproto.jetstream.objectstore import ObjectStore, ObjectStoreNotice
from natsproto.jetstream.objectstore._meta import is_own_nuid, meta_subject
from natsproto.protocol.subject import have_no_wildcards, is_literal, overlap
from natsproto.testing import Server
from tests.hostile.helpers import publish_literally
from tests.kit.contents import all_keys
from tests.kit.watch import Watch
from tests.objectstore.helpers import chunks, cleanups_ended, content, listed_names

TAILS = (">", "*", "a.>", "*.d", ">.x", "*.>")
"""Last tokens that a server stores as it does any other."""

ENTRIES = ("a", "a.b", "c.d")


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def js(nats_server: Server, watch: Watch) -> AsyncIterator[JetStream]:
    """The JetStream of the victim, with its events in ``watch``."""
    async with natsproto.connect(nats_server.url, on_event=watch) as nc:
        yield nc.jetstream()


@pytest.fixture
async def kv(js: JetStream) -> KeyValue:
    """A bucket with some keys."""
    made = await js.create_key_value("b", history=3)
    for key in ENTRIES:
        await made.put(key, b"precious")
    return made


@pytest.fixture
async def store(js: JetStream) -> ObjectStore:
    """A store with the objects one and two."""
    made = await js.create_object_store("files")
    for name in ("one", "two"):
        await made.put(name, content(300_000))
    return made


@pytest.mark.parametrize("subject", [f"s.{tail}" for tail in TAILS] + ["", "a..b", ".a", "a.", "a b", "a\n", "\udcff"])
def test_what_is_no_literal_is_known(subject: str) -> None:
    assert not is_literal(subject)
    if subject.isprintable() and subject and " " not in subject:
        assert not have_no_wildcards(["fine", subject, "fine"])


def test_a_literal_matches_only_itself() -> None:
    assert all(map(is_literal, ("a.b", "a*.>b", "größe")))
    assert not overlap("a*.>b", "ax.>b")
    assert have_no_wildcards([])
    assert have_no_wildcards(["a.b", "c"])


@pytest.mark.parametrize("tail", TAILS)
async def test_purge_deletes_keeps_live_keys(nats_server: Server, kv: KeyValue, watch: Watch, tail: str) -> None:
    await kv.put("gone", b"1")
    await kv.delete("gone")
    await publish_literally(nats_server, f"$KV.b.{tail}", headers=b"KV-Operation: DEL\r\n")
    assert await kv.purge_deletes(older_than=0) == 2
    assert sorted(await all_keys(kv)) == sorted(await kv.get_many([">"])) == list(ENTRIES)
    assert tail in [key for event in watch.all(KeyValueNotice) for key in event.keys]


@pytest.mark.parametrize("tail", TAILS)
async def test_a_key_with_wildcards_is_left_out(nats_server: Server, kv: KeyValue, watch: Watch, tail: str) -> None:
    await publish_literally(nats_server, f"$KV.b.{tail}", b"junk")
    async with kv.watch() as watcher, kv.cache() as cache:
        assert [entry.key async for entry in watcher.initial()] == list(ENTRIES) == sorted(cache)
        await publish_literally(nats_server, f"$KV.b.{tail}", b"junk")
        await kv.put("more", b"1")
        assert (await watcher.next(20)).key == "more"
    assert await all_keys(kv) == [*ENTRIES, "more"]
    assert {event.keys for event in watch.all(KeyValueNotice)} == {(tail,)}


async def test_many_keys_beside_a_wildcard_are_read_once(nats_server: Server, js: JetStream) -> None:
    kv = await js.create_key_value("many")
    for first in range(0, 1100, 100):
        await asyncio.gather(*(kv.put(f"k.{number}", b"1") for number in range(first, first + 100)))
    await publish_literally(nats_server, "$KV.many.>", b"junk")
    assert len(await kv.get_many([">"])) == 1100


@pytest.mark.parametrize("tail", TAILS)
async def test_purge_orphans_keeps_whole_objects(nats_server: Server, store: ObjectStore, tail: str) -> None:
    before = await chunks(store)
    await publish_literally(nats_server, f"$O.files.C.{tail}", b"junk")
    assert await store.purge_orphans() == 0  # it is young
    assert await store.purge_orphans(older_than=0) == 1
    assert await chunks(store) == before
    assert await store.get_bytes("one") == content(300_000)


@pytest.mark.parametrize("tail", TAILS)
async def test_advice_about_junk_names_one_message(
    nats_server: Server, store: ObjectStore, watch: Watch, tail: str
) -> None:
    await publish_literally(nats_server, f"$O.files.M.{tail}", b"junk")
    assert sorted(await listed_names(store)) == ["one", "two"]
    text = str(watch.all(ObjectStoreNotice)[-1])
    stream = store._index.stream
    last = (await stream.info()).state.last_seq
    assert f"(await js.stream('OBJ_files')).delete_message({last})" in text
    assert "purge" not in text
    await stream.delete_message(last)
    assert await listed_names(store) == ["one", "two"]


async def test_an_entry_has_the_name_of_its_subject(nats_server: Server, store: ObjectStore, watch: Watch) -> None:
    info = {"name": "one", "bucket": "files", "nuid": "n", "size": 3, "chunks": 1}
    for said in (info, info | {"name": "\ud800"}):
        await publish_literally(nats_server, "$O.files.M.>", json.dumps(said).encode())
        await publish_literally(nats_server, meta_subject("files", "x"), json.dumps(said).encode())
        assert await listed_names(store) == ["one", "two"]
    assert {event.subject for event in watch.all(ObjectStoreNotice)} == {"$O.files.M.>", meta_subject("files", "x")}


async def forge_entry(client: Client, name: str, **changed: Any) -> None:
    """Write an entry, as anybody with permission for its subject can."""
    said = {"name": name, "bucket": "files", "nuid": "n", "size": 3, "chunks": 1, **changed}
    await client.request(meta_subject("files", name), json.dumps(said).encode())


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("by", ["our client", "another client", "a rename"])
async def test_an_entry_takes_only_its_own_chunks(
    store: ObjectStore, nats_client: Client, by: str, deleted: bool
) -> None:
    info = await store.put("precious", content(300_000, 2))
    if by == "another client":
        nuid = "SrMEhmt3ZYHlnZmdBzuWVj"
        async for message in store._index.stream.get_batch(subject=f"$O.files.C.{info.nuid}"):
            await nats_client.request(f"$O.files.C.{nuid}", message.data)
        await forge_entry(nats_client, "precious", nuid=nuid, size=info.size, chunks=info.chunks, digest=info.digest)
        assert not is_own_nuid(await store.info("precious"))
    elif by == "a rename":
        info = await store.update_meta("precious", rename="renamed")
    victim = "renamed" if by == "a rename" else "precious"
    nuid = (await store.info(victim)).nuid
    for call in (store.delete("mallory"), store.put("mallory", b"new")):
        await forge_entry(nats_client, "mallory", nuid=nuid, deleted=deleted)
        await call
        await cleanups_ended(store)
        assert await store.get_bytes(victim) == content(300_000, 2)
    assert await store.get_bytes("mallory") == b"new"


async def test_chunks_of_other_clients_are_purged(store: ObjectStore, nats_client: Client) -> None:
    before = await chunks(store)
    await nats_client.request("$O.files.C.theirs", b"abc")
    await forge_entry(nats_client, "theirs", nuid="theirs")
    await store.put("old", b"1")
    await store.update_meta("old", rename="new")
    await store.put("theirs", b"")
    await store.delete("new")
    await cleanups_ended(store)
    assert await chunks(store) == before


async def test_a_schedule_is_cancelled_by_one_subject(js: JetStream) -> None:
    await js.create_stream("S", subjects=["s.>"])
    await js.publish("s.a", b"1")
    for subject in ("s.*", "s.>", ">"):
        with pytest.raises(InvalidSubject):
            await js.cancel_schedule(subject, stream="S")
    assert (await (await js.stream("S")).info()).state.messages == 1
    with pytest.raises(MessageNotFound):
        await (await js.stream("S")).get_last_message("s.b")
