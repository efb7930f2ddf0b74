"""What a store says of its objects: list, rename, delete, links; and the stores themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import (
    BucketExists,
    BucketNotFound,
    ConfigError,
    InvalidReply,
    InvalidSubject,
    ObjectChanged,
    ObjectExists,
    ObjectLinkError,
    ObjectNotFound,
    PublishUncertain,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.bucket_config import ObjectStoreConfig
from natsproto.jetstream._values.config_parts import Placement
from natsproto.jetstream._values.policies import StorageType
from natsproto.jetstream.objectstore import ObjectInfo, ObjectLink, ObjectStore
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.jetstream.objectstore._meta import meta_subject
from natsproto.testing import run_server
from tests.kit.interruption import interruptions
from tests.objectstore.helpers import add_links, chunks, cleanups_ended, content, holds_only, listed_names, read_object


async def store_of(js: JetStream, bucket: str = "files", **objects: bytes) -> ObjectStore:
    store = await js.create_object_store(bucket=bucket, storage="memory")
    for name, data in objects.items():
        await store.put(name, data)
    return store


# ---------------------------------------------------------------- list and delete


async def test_list_holds_every_object_once(jetstream: JetStream) -> None:
    store = await store_of(jetstream, a=b"1", b=b"2", c=b"3")
    await store.put("a", b"4")
    await store.delete("b")
    await store.add_link("d", "a")
    assert await listed_names(store) == ["c", "a", "d"]
    listed = {info.name: info async for info in store.list(deleted=True)}
    assert list(listed) == ["c", "a", "b", "d"]
    assert listed["b"].deleted
    for name in "acd":
        assert listed[name] == await store.info(name)
    assert await listed_names(await store_of(jetstream, "empty")) == []


@pytest.mark.slow
async def test_a_list_may_be_long(jetstream: JetStream) -> None:
    store = await store_of(jetstream)
    await add_links(store, 1500)
    assert sorted(await listed_names(store)) == sorted(f"n{number}" for number in range(1500))


async def test_delete_removes_the_content(jetstream: JetStream) -> None:
    store = await store_of(jetstream, o=content(300_000))
    before = await store.info("o")
    await store.delete("o")
    gone = await store.info("o", deleted=True)
    assert (gone.deleted, gone.size, gone.chunks, gone.digest) == (True, 0, 0, "")
    assert gone.nuid == before.nuid
    assert await chunks(store) == {}
    await store.delete("o")
    assert (await store.info("o", deleted=True)).mtime == gone.mtime  # nothing was written
    with pytest.raises(ObjectNotFound):
        await store.delete("never")
    assert (await store.put("o", b"1")).size == 1
    assert await listed_names(store) == ["o"]


async def test_bad_argument_of_a_step_is_not_logged(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    store = await store_of(jetstream, o=b"1")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.delete("o", timeout="1"),  # type: ignore[arg-type]
        lambda: store.update_meta("o", rename="p", timeout="1"),  # type: ignore[arg-type]
        lambda: store.update_meta("o", rename="p", description=5),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises((TypeError, ConfigError)):
            await call()
    await cleanups_ended(store)
    assert (caplog.record_tuples, await listed_names(store)) == ([], ["o"])


async def test_a_cancelled_delete_deletes_or_does_not(jetstream: JetStream) -> None:
    store = await store_of(jetstream)

    async def delete() -> object:
        await store.delete("o")
        return None

    await store.put("o", content(300_000))
    async for run in interruptions(delete):
        run.check()
        await cleanups_ended(store)
        if await listed_names(store):
            await holds_only(store, ["o"])
        else:
            assert await chunks(store) == {}
        await store.put("o", content(300_000))


async def test_a_description_that_is_none_is_a_typed_error(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of(jetstream)
    await nats_client.request(meta_subject("files", "o"), b"not JSON")
    for asked in (store.info("o"), store.get_bytes("o"), store.put("o", b"1"), store.delete("o")):
        with pytest.raises(InvalidReply):
            await asked
    assert await chunks(store) == {}


async def test_what_others_say_of_an_object_is_kept(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of(jetstream, o=b"1")
    said = json.loads((await store._index.stream.get_last_message(meta_subject("files", "o"))).data)
    assert "mtime" not in said
    said |= {"color": "red", "mtime": "0001-01-01T00:00:00Z"}
    await nats_client.request(meta_subject("files", "o"), json.dumps(said).encode(), headers={"Nats-Rollup": "sub"})
    info = await store.info("o")
    assert info.extra == {"color": "red"}
    stored = await store._index.stream.get_last_message(meta_subject("files", "o"))
    assert info.mtime == stored.time
    await store.update_meta("o", description="new")
    said = json.loads((await store._index.stream.get_last_message(meta_subject("files", "o"))).data)
    assert (said["color"], said["description"], "mtime" in said) == ("red", "new", False)


# ---------------------------------------------------------------- changing


async def test_only_what_is_given_changes(jetstream: JetStream) -> None:
    store = await store_of(jetstream)
    data = content(300_000)
    before = await store.put("o", data, description="d", headers={"A": "1"}, metadata={"m": "1"})
    info = await store.update_meta("o", description="e")
    assert (info.description, info.headers, info.metadata) == ("e", {"A": ("1",)}, {"m": "1"})
    info = await store.update_meta("o", headers={"B": ["2", "3"]}, metadata={})
    assert (info.description, info.headers, info.metadata) == ("e", {"B": ("2", "3")}, {})
    found = await store.info("o")
    assert found.replace(mtime=info.mtime) == info
    assert (found.nuid, found.size, found.digest) == (before.nuid, before.size, before.digest)
    assert await store.get_bytes("o") == data
    for missing in ("never", "gone"):
        if missing == "gone":
            await store.put("gone", b"1")
            await store.delete("gone")
        with pytest.raises(ObjectNotFound):
            await store.update_meta(missing, description="x")
        with pytest.raises(ObjectNotFound):
            await store.update_meta(missing, rename="x")


async def test_a_renamed_object_has_the_new_name_only(jetstream: JetStream) -> None:
    store = await store_of(jetstream, a=content(300_000), b=b"2", gone=b"3")
    await store.delete("gone")
    for position, new in enumerate(("c", "gone", "a/🌸")):
        old = ("a", "c", "gone")[position]
        info = await store.update_meta(old, rename=new, description=str(position))
        assert (info.name, info.description) == (new, str(position))
        assert await store.get_bytes(new) == content(300_000)
        with pytest.raises(ObjectNotFound):
            await store.info(old, deleted=True)
    assert sorted(await listed_names(store, deleted=True)) == ["a/🌸", "b"]
    with pytest.raises(ObjectExists) as taken:
        await store.update_meta("a/🌸", rename="b")
    assert (taken.value.bucket, taken.value.name) == ("files", "b")
    with pytest.raises(ConfigError):
        await store.update_meta("b", rename="")
    assert (await store.update_meta("b", rename="b", description="same")).description == "same"
    await holds_only(store, ["a/🌸", "b"])


async def test_rename_of_an_object_changed_meanwhile(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(jetstream)
    change = ObjectIndex.change

    for meddle in (lambda: store.put("a", content(200_000, 2)), lambda: store.delete("a")):
        await store.put("a", content(300_000))

        async def changed(index: ObjectIndex, name: str, *args: object, **more: object) -> object:
            if name == "a":
                monkeypatch.setattr(ObjectIndex, "change", change)
                await meddle()  # noqa: B023  # it is this round's
            return await change(index, name, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(ObjectIndex, "change", changed)
        with pytest.raises(ObjectChanged):
            await store.update_meta("a", rename="b")
        left = await listed_names(store)
        assert left in (["a"], [])
        await holds_only(store, left)
        if left:
            assert await store.get_bytes("a") == content(200_000, 2)


async def test_concurrent_changes_are_both_kept(jetstream: JetStream) -> None:
    store = await store_of(jetstream, o=content(300_000))
    await asyncio.gather(
        *(store.update_meta("o", description=f"{number}") for number in range(5)),
        *(store.update_meta("o", metadata={"n": f"{number}"}) for number in range(5)),
        *(store.update_meta("o", headers={"n": f"{number}"}) for number in range(5)),
    )
    info = await store.info("o")
    assert info.description
    assert info.metadata
    assert info.headers
    assert (await store.status()).stream.state.last_seq == 3 + 1 + 15
    await holds_only(store, ["o"])


async def test_change_without_an_ack_is_looked_up(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(jetstream)
    publish = ObjectIndex._publish
    lost = [True, True]

    async def quiet(index: ObjectIndex, *args: object) -> object:
        done = await publish(index, *args)  # type: ignore[arg-type]
        if lost:
            lost.pop()
            raise PublishUncertain("meta", "silence")
        return done

    monkeypatch.setattr(ObjectIndex, "_publish", quiet)
    info = await store.put("o", content(300_000))
    assert (await store.info("o")).nuid == info.nuid
    assert (await store.status()).stream.state.last_seq == 4  # it was not stored twice
    await store.delete("o")
    assert await chunks(store) == {}


async def test_change_that_is_never_acked_keeps_both(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(jetstream, o=content(300_000))

    async def silent(index: ObjectIndex, *args: object) -> object:
        raise PublishUncertain("meta", "silence")

    monkeypatch.setattr(ObjectIndex, "_publish", silent)
    with pytest.raises(PublishUncertain):
        await store.put("o", content(300_000, 2))
    assert await store.get_bytes("o") == content(300_000)
    assert len(await chunks(store)) == 2  # the new ones may be needed


# ---------------------------------------------------------------- links


async def test_a_link_leads_to_its_object_in_any_store(jetstream: JetStream) -> None:
    here = await store_of(jetstream, "here", o=content(300_000))
    there = await store_of(jetstream, "there", p=content(200_000, 2))
    link = await here.add_link("near", "o", description="d", metadata={"m": "1"}, headers={"H": "1"})
    assert (link.link, link.size, link.chunks, link.digest) == (ObjectLink(bucket="here", name="o"), 0, 0, "")
    assert (link.description, link.metadata, link.headers) == ("d", {"m": "1"}, {"H": ("1",)})
    await here.add_link("far", await there.info("p"))
    assert await here.get_bytes("near") == content(300_000)
    assert await here.get_bytes("far", follow_links=True) == content(200_000, 2)
    assert (await here.info("far")).link == ObjectLink(bucket="there", name="p")
    async with here.get("far", follow_links=True) as obj:
        assert (obj.info.bucket, obj.info.name) == ("there", "p")
    assert (
        await read_object(here.get(await here.info("far"), offset=199_999, follow_links=True))
        == content(200_000, 2)[-1:]
    )
    await there.put("p", b"new")
    assert await here.get_bytes("far", follow_links=True) == b"new"
    await here.delete("far")
    assert await there.get_bytes("p") == b"new"
    await there.put("q", b"q")
    await here.add_link("near", await there.info("q"))  # a link may be replaced
    assert await here.get_bytes("near", follow_links=True) == b"q"
    assert (await here.put("near", b"own")).link is None
    assert await here.get_bytes("near") == b"own"
    await holds_only(here, ["o", "near"])


async def test_links_that_cannot_be_made_are_refused(jetstream: JetStream) -> None:
    store = await store_of(jetstream, o=b"1", gone=b"2")
    stale = await store.info("gone")
    await store.delete("gone")
    await store.add_link("link", "o")
    with pytest.raises(ObjectLinkError, match="which is a link itself"):
        await store.add_link("again", "link")
    with pytest.raises(ObjectLinkError, match="cannot be a link to itself"):
        await store.add_link("o", "o")
    with pytest.raises(ObjectExists):
        await store.add_link("o", await (await store_of(jetstream, "other", p=b"1")).info("p"))
    with pytest.raises(ObjectExists):
        await store.add_bucket_link("o", "other")
    for nowhere in ("never", "gone", stale):
        with pytest.raises(ObjectNotFound):
            await store.add_link("new", nowhere)
    with pytest.raises(InvalidSubject):
        await store.add_bucket_link("new", "a.b")
    with pytest.raises(ConfigError):
        await store.add_link("", "o")
    with pytest.raises(BucketNotFound):
        await store.add_link("new", ObjectInfo(name="o", bucket="none"))
    assert await listed_names(store) == ["o", "link"]
    await store.add_link("gone", "o")  # a deleted name is free
    assert await store.get_bytes("gone") == b"1"


async def test_links_that_lead_nowhere_say_so(jetstream: JetStream, nats_client: Client) -> None:
    store = await store_of(jetstream, a=b"1", b=b"2")
    await store_of(jetstream, "other")
    await store.add_bucket_link("all", "other")
    await store.add_bucket_link("none", await jetstream.object_store("missing", bind=True))
    assert (await store.info("all")).link == ObjectLink(bucket="other")
    with pytest.raises(ObjectLinkError, match="is a link to the store 'other'") as whole:
        await store.get_bytes("all")
    assert (whole.value.bucket, whole.value.name) == ("files", "all")
    await store.add_link("dangling", "a")
    await store.delete("a")
    with pytest.raises(ObjectNotFound) as missing:
        await store.get_bytes("dangling")
    assert missing.value.name == "a"
    # No client of ours makes such, but somebody may.
    for name, goal in (("x", "y"), ("y", "x"), ("z", "z"), ("into", "x")):
        said = {"name": name, "bucket": "files", "nuid": "n", "options": {"link": {"bucket": "files", "name": goal}}}
        await nats_client.request(meta_subject("files", name), json.dumps(said).encode())
    for name in ("x", "y", "z", "into"):
        with pytest.raises(ObjectLinkError, match="leads back to itself"):
            await store.get_bytes(name)
    said = {"name": "w", "bucket": "files", "nuid": "n", "options": {"link": {"bucket": "a b.>", "name": "o"}}}
    await nats_client.request(meta_subject("files", "w"), json.dumps(said).encode())
    with pytest.raises(InvalidSubject):
        await store.get_bytes("w", follow_links=True)


async def test_links_can_be_renamed_and_described(jetstream: JetStream) -> None:
    store = await store_of(jetstream, o=b"1")
    await store.add_link("l", "o")
    info = await store.update_meta("l", rename="m", description="d")
    assert (info.name, info.description, info.link) == ("m", "d", ObjectLink(bucket="files", name="o"))
    assert await store.get_bytes("m") == b"1"
    assert sorted(await listed_names(store, deleted=True)) == ["m", "o"]


# ---------------------------------------------------------------- stores


async def test_every_option_of_a_store_reaches_the_server(jetstream: JetStream) -> None:
    config = ObjectStoreConfig(
        bucket="files",
        description="d",
        ttl=3600,
        max_bytes=10_000_000,
        storage="file",
        num_replicas=1,
        placement=Placement(tags=()),
        compression=True,
        allow_batched=True,
        metadata={"owner": "me"},
    )
    store = await jetstream.create_object_store(config)
    status = await store.status()
    own = {key: value for key, value in status.metadata.items() if not key.startswith("_nats.")}
    assert status.config.replace(metadata=own, placement=None) == config.replace(placement=None)
    assert (status.bucket, status.description, status.ttl, status.storage) == ("files", "d", 3600, StorageType.FILE)
    assert (status.replicas, status.sealed, status.is_compressed, own) == (1, False, True, {"owner": "me"})
    assert (status.bytes, status.backing_store) == (0, "JetStream")
    stream = status.stream.config
    assert stream.subjects == ("$O.files.C.>", "$O.files.M.>")
    assert (stream.discard, stream.allow_rollup_hdrs, stream.allow_direct) == ("new", True, True)
    await store.put("o", b"1")
    assert (await store.status()).bytes > 1


async def test_stores_are_made_changed_found_and_deleted(jetstream: JetStream) -> None:
    assert [name async for name in jetstream.object_store_names()] == []
    await jetstream.create_stream(name="OTHER", subjects=["other"])
    await jetstream.create_key_value(bucket="kv")
    one = await jetstream.create_object_store(bucket="one", storage="memory")
    await jetstream.create_object_store(ObjectStoreConfig(bucket="one"), storage="memory")  # the same again
    with pytest.raises(BucketExists):
        await jetstream.create_object_store(bucket="one", storage="memory", description="other")
    await jetstream.update_object_store(bucket="one", storage="memory", description="new", allow_batched=True)
    assert (await one.status()).description == "new"
    with pytest.raises(BucketNotFound):
        await jetstream.update_object_store(bucket="two")
    for description in ("first", "second"):
        two = await jetstream.create_or_update_object_store(bucket="two", description=description)
        assert (await two.status()).description == description
    assert sorted([name async for name in jetstream.object_store_names()]) == ["one", "two"]
    statuses = {status.bucket: status.description async for status in jetstream.object_store_statuses()}
    assert statuses == {"one": "new", "two": "second"}
    assert (await jetstream.object_store("one")).bucket == "one"
    await jetstream.delete_object_store("one")
    with pytest.raises(BucketNotFound):
        await jetstream.delete_object_store("one")
    with pytest.raises(BucketNotFound):
        await jetstream.object_store("one")
    for name in ("", "a.b", "a b", "ä", "a\n"):
        for wrong in (
            jetstream.create_object_store(bucket=name),
            jetstream.object_store(name, bind=True),
            jetstream.delete_object_store(name),
        ):
            with pytest.raises(InvalidSubject):
                await wrong


@pytest.mark.slow
async def test_objects_go_after_their_ttl(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", ttl=0.3)
    await store.put("o", content(300_000))
    async with asyncio.timeout(10):
        while await listed_names(store) or await chunks(store):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.02)
    with pytest.raises(ObjectNotFound):
        await store.get_bytes("o")


async def test_store_in_a_domain() -> None:
    async with (
        run_server(jetstream=True, config="jetstream { domain: hub }") as server,
        natsproto.connect(server.url) as nc,
    ):
        store = await nc.jetstream(domain="hub").create_object_store(bucket="files", storage="memory")
        await store.put("o", content(300_000))
        assert await store.get_bytes("o") == content(300_000)
        await store.put("o", b"1")
        await holds_only(store, ["o"])
