"""Object stores that somebody else may write to, and folders that others may write to."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import InvalidReply, ObjectLinkError, ObjectNotFound
from natsproto.jetstream import JetStream
from natsproto.jetstream.objectstore import ObjectStore, ObjectStoreNotice
from natsproto.jetstream.objectstore._meta import meta_subject
from natsproto.testing import Server
from tests.kit.watch import Watch
from tests.objectstore.helpers import chunks, content, listed_names, read_object

NUIDS = [
    ">",
    "*",
    "a.b",
    "a.>",
    "a b",
    "../../etc/passwd",
    "..",
    "/etc/x",
    "a\\b",
    "C:x",
    "a\r\nb",
    "a\0",
    "ü",
    "x" * 256,
    "",
]


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def js(nats_server: Server, watch: Watch) -> AsyncIterator[JetStream]:
    """The JetStream of the victim, with its events in ``watch``."""
    async with natsproto.connect(nats_server.url, on_event=watch) as nc:
        yield nc.jetstream()


@pytest.fixture
async def store(js: JetStream) -> ObjectStore:
    """A store with the objects a and b."""
    made = await js.create_object_store(bucket="files")
    await made.put("a", content(300_000))
    await made.put("b", b"b")
    return made


async def forge_info(stranger: Client, name: str, bucket: str = "files", **changed: Any) -> None:
    """Write the info of an object, as anybody with permission for its subject can."""
    said = {"name": name, "bucket": bucket, "nuid": "n", "size": 3, "chunks": 1, **changed}
    await stranger.request(meta_subject(bucket, name), json.dumps(said).encode())


@pytest.mark.parametrize("nuid", NUIDS)
async def test_wrong_nuid_purges_nothing(store: ObjectStore, nats_client: Client, tmp_path: Path, nuid: str) -> None:
    """With ``>`` a delete purged every object of the store."""
    before = await chunks(store)
    await forge_info(nats_client, "forged", nuid=nuid)
    for asked in (
        store.delete("forged"), store.put("forged", b"1"), store.get_bytes("forged"),
        store.get_file("forged", tmp_path / "f", resume=True), store.update_meta("forged", rename="c"),
    ):  # fmt: skip
        with pytest.raises(InvalidReply, match="nuid"):
            await asked
    assert await chunks(store) == before
    assert os.listdir(tmp_path) == []
    assert await store.get_bytes("a") == content(300_000)


@pytest.mark.parametrize("field", ["size", "chunks"])
async def test_negative_size_is_unreadable(store: ObjectStore, nats_client: Client, field: str) -> None:
    changed: dict[str, Any] = {field: -5}
    await forge_info(nats_client, "forged", **changed)
    with pytest.raises(InvalidReply, match=f"{field} -5") as caught:
        await store.get_bytes("forged")
    assert await listed_names(store) == ["a", "b"]
    advice = str(caught.value).partition("remove the entry: ")[2]
    delete = advice.removeprefix("(await js.stream('OBJ_files')).")
    js = nats_client.jetstream()
    await eval(delete, {"delete_message": (await js.stream("OBJ_files")).delete_message})  # as a user does
    with pytest.raises(ObjectNotFound):
        await store.get_bytes("forged")


async def test_nuids_of_other_clients_are_read(store: ObjectStore, nats_client: Client) -> None:
    for nuid in ("SrMEhmt3ZYHlnZmdBzuWVj", "a-b_c", "0195f0c5-9a4b-7000-8000-000000000000", "x" * 255):
        await forge_info(nats_client, "other", nuid=nuid)
        assert (await store.info("other")).nuid == nuid
    await forge_info(nats_client, "link", nuid="", size=0, chunks=0, options={"link": {"bucket": "files", "name": "a"}})
    assert await store.get_bytes("link") == content(300_000)


async def test_an_unreadable_entry_is_skipped_and_told(store: ObjectStore, nats_client: Client, watch: Watch) -> None:
    await nats_client.request(meta_subject("files", "bad"), b"not JSON")
    await forge_info(nats_client, "worse", nuid=">")
    await store.put("c", b"c")
    assert await listed_names(store) == ["a", "b", "c"]
    told = watch.all(ObjectStoreNotice)
    assert [(event.bucket, event.subject) for event in told] == [
        ("files", meta_subject("files", "bad")), ("files", meta_subject("files", "worse")),
    ]  # fmt: skip
    assert all(isinstance(event.error, InvalidReply) for event in told)
    async with store.watch() as watcher:
        assert [(await watcher.next(5)).name for _ in range(3)] == ["a", "b", "c"]
        await watcher.ready()
        await nats_client.request(meta_subject("files", "bad"), b"[]")
        await store.put("d", b"d")
        assert (await watcher.next(5)).name == "d"
    assert len(watch.all(ObjectStoreNotice)) == 5


async def test_a_watch_of_unreadable_entries_is_ready(js: JetStream, nats_client: Client) -> None:
    store = await js.create_object_store(bucket="files")
    await nats_client.request(meta_subject("files", "bad"), b"not JSON")
    async with store.watch() as watcher:
        await watcher.ready()
        assert watcher.caught_up


async def test_an_object_without_a_digest_is_an_event(store: ObjectStore, nats_client: Client, watch: Watch) -> None:
    nuid = (await store.info("b")).nuid
    assert await store.get_bytes("b") == b"b"
    assert watch.all(ObjectStoreNotice) == []
    await forge_info(nats_client, "b", nuid=nuid, size=1)
    assert await store.get_bytes("b") == b"b"
    (told,) = watch.all(ObjectStoreNotice)
    assert "'b' has no digest" in str(told.error)


async def test_an_info_cannot_name_another_store(store: ObjectStore, js: JetStream, nats_client: Client) -> None:
    secret = await js.create_object_store(bucket="secrets")
    nuid = (await secret.put("x", b"secret")).nuid
    said = {"name": "x", "bucket": "secrets", "nuid": nuid, "size": 6, "chunks": 1}
    await nats_client.request(meta_subject("files", "x"), json.dumps(said).encode())
    info = await store.info("x")
    assert info.bucket == "files"
    with pytest.raises(natsproto.errors.DigestMismatch):
        await store.get_bytes(info)


async def test_links_into_other_stores_need_follow_links(
    store: ObjectStore, js: JetStream, nats_client: Client, tmp_path: Path
) -> None:
    secrets = await js.create_object_store(bucket="secrets")
    await secrets.put("x", b"secret")
    link = {"link": {"bucket": "secrets", "name": "x"}}
    await forge_info(nats_client, "a", size=0, chunks=0, options=link)
    for asked in (store.get_bytes("a"), store.get_file("a", tmp_path / "a"), read_object(store.get("a"))):
        with pytest.raises(ObjectLinkError, match="into the store 'secrets': pass follow_links=True"):
            await asked
    assert await store.get_bytes("a", follow_links=True) == b"secret"
    assert await read_object(store.get("a", follow_links=True)) == b"secret"
    await store.get_file("a", tmp_path / "a", follow_links=True)
    assert (tmp_path / "a").read_bytes() == b"secret"


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "pipe", "dangling link"])
async def test_a_partial_file_that_is_a_link_is_refused(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "shared"
    folder.mkdir()
    if kind != "dangling link":
        victim.write_bytes(b"of somebody else")
    partial = folder / f"f.{(await store.info('a')).nuid}.partial"
    if kind == "hard link":
        os.link(victim, partial)
    elif kind == "pipe":
        os.mkfifo(partial)
    else:
        partial.symlink_to(victim)
    with pytest.raises(OSError, match=r"links|file of its own"):
        await store.get_file("a", folder / "f", resume=True)
    assert not (folder / "f").exists()
    if kind == "dangling link":
        assert not victim.exists()
    else:
        assert victim.read_bytes() == b"of somebody else"
    partial.unlink()
    await store.get_file("a", folder / "f", resume=True)
    assert (folder / "f").read_bytes() == content(300_000)


async def test_backups_are_for_their_owner_only(jetstream: JetStream, tmp_path: Path) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"])
    await jetstream.publish("s", b"secret")
    old = os.umask(0)
    try:
        await stream.backup(tmp_path / "kept")
        await stream.backup(tmp_path / "kept")
    finally:
        os.umask(old)
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "kept").iterdir()} == {
        "backup.json": 0o600, "stream.tar.s2": 0o600,
    }  # fmt: skip
