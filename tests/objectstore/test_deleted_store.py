"""Stores that are gone, or never were: every verb says so and names the bucket, as key/value buckets do."""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncIterator, Awaitable

import pytest

from natsproto.errors import BucketNotFound, JetStreamError, KeyValueError, NoStream, ObjectStoreError, Unavailable
from natsproto.jetstream import JetStream, ObjectStoreConfig, StreamSource
from natsproto.jetstream.objectstore import ObjectInfo, ObjectStore
from tests.objectstore.helpers import CHUNK, content, listed_names, read_object


def verbs(store: ObjectStore, folder: pathlib.Path) -> dict[str, Awaitable[object]]:
    return {
        "status": store.status(),
        "seal": store.seal(),
        "purge_orphans": store.purge_orphans(),
        "put": store.put("o", b"1"),
        "put nothing": store.put("o", b""),
        "get": read_object(store.get("o")),
        "get of a version": read_object(
            store.get(ObjectInfo(name="o", bucket=store.bucket, size=1, chunks=1, nuid="n"))
        ),
        "get_bytes": store.get_bytes("o"),
        "get_file": store.get_file("o", folder / "f"),
        "info": store.info("o"),
        "list": listed_names(store),
        "delete": store.delete("o"),
        "update_meta": store.update_meta("o", description="x"),
        "rename": store.update_meta("o", rename="p"),
        "add_link": store.add_link("l", "o"),
        "add_bucket_link": store.add_bucket_link("l", "o"),
    }


@pytest.mark.parametrize("bound", [False, True])
async def test_every_verb_says_which_store_is_gone(jetstream: JetStream, tmp_path: pathlib.Path, bound: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    if bound:
        store = await jetstream.object_store("files", bind=True)
    await store.put("o", content(2 * CHUNK))
    await jetstream.delete_object_store("files")
    calls = verbs(store, tmp_path) | {
        "open": jetstream.object_store("files"),
        "delete store": jetstream.delete_object_store("files"),
        "update store": jetstream.update_object_store(bucket="files"),
    }
    for name, call in calls.items():
        with pytest.raises(BucketNotFound, match="bucket 'files' not found") as gone:
            await call
        assert gone.value.bucket == "files", name
    async with store.watch() as watcher:
        with pytest.raises(BucketNotFound, match="'files'"):
            await watcher.next(timeout=20)
    assert os.listdir(tmp_path) == []


async def test_the_store_that_a_link_leads_to_is_named(jetstream: JetStream) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory")
    other = await jetstream.create_object_store(bucket="other", storage="memory")
    await other.put("o", b"1")
    await store.add_link("link", await other.info("o"))
    await jetstream.delete_object_store("other")
    for call in (
        store.get_bytes("link", follow_links=True),
        store.add_link("new", ObjectInfo(name="o", bucket="other")),
    ):
        with pytest.raises(BucketNotFound, match="'other'"):
            await call


async def test_errors_do_not_call_a_store_a_bucket(jetstream: JetStream) -> None:
    for call in (jetstream.object_store("files"), jetstream.delete_object_store("files")):
        with pytest.raises(BucketNotFound) as missing:
            await call
        assert "object store 'files'" in str(missing.value.__cause__)


@pytest.mark.parametrize("allow_batched", [False, True])
async def test_put_names_a_store_that_is_deleted_meanwhile(jetstream: JetStream, allow_batched: bool) -> None:
    store = await jetstream.create_object_store(bucket="files", storage="memory", allow_batched=allow_batched)

    async def source() -> AsyncIterator[bytes]:
        for number in range(30):
            if number == 20:
                await jetstream.delete_object_store("files")
            yield bytes(CHUNK)

    with pytest.raises(BucketNotFound, match="'files'") as gone:
        await store.put("o", source(), timeout=1)
    assert isinstance(gone.value.__cause__, JetStreamError)  # what the publisher was told


async def test_store_that_is_a_read_only_copy_exists(jetstream: JetStream) -> None:
    await jetstream.create_object_store(bucket="files", storage="memory")
    stream = ObjectStoreConfig(bucket="copy", storage="memory").to_stream()
    await jetstream.create_stream(stream, subjects=[], mirror=StreamSource(name="OBJ_files"), allow_rollup_hdrs=False)
    copy = await jetstream.object_store("copy")
    for data in (b"1", b""):
        with pytest.raises(NoStream) as refused:
            await copy.put("o", data, timeout=1)
        assert refused.value.__cause__ is not refused.value


async def test_bucket_not_found_of_both_kinds_of_buckets() -> None:
    error = BucketNotFound("files")
    assert isinstance(error, KeyValueError)
    assert isinstance(error, ObjectStoreError)


async def test_store_without_a_leader_is_unavailable(jetstream: JetStream) -> None:
    """Chunks that no stream took are an outage of a store that exists, as an info is."""
    store = await jetstream.create_object_store("b")
    error = await store._index.translate_error(NoStream("$O.b.C.x", 5.0))
    assert isinstance(error, Unavailable)
    assert "object store 'b'" in str(error)
