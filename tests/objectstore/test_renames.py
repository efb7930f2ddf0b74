"""Renames that are cut between their steps, and renames beside other changes: no name destroys another's content."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from natsproto import Client
from natsproto.errors import (
    NoResponders,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    PublishUncertain,
    RequestTimeout,
)
from natsproto.jetstream import JetStream
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.jetstream.objectstore import _store as stores
from natsproto.jetstream.objectstore._index import ObjectIndex
from natsproto.testing import Server
from tests.objectstore.helpers import chunks, listed_names

RENAME = """
import asyncio, random, sys
import natsproto


async def main():
    async with natsproto.connect(sys.argv[1]) as nc:
        await nc.subscribe("renaming", cb=print)
        store = await nc.jetstream().object_store("files")
        chance, name = random.Random(sys.argv[2]), sys.argv[3]
        print("begins", flush=True)
        while True:
            rename = chance.choice([other for other in "abc" if other != name])
            await store.update_meta(name, rename=rename)
            name = rename


asyncio.run(main())
"""


@pytest.mark.parametrize("survivor", ["a", "b"])
@pytest.mark.parametrize("how", ["delete", "put"])
@pytest.mark.parametrize("path", [("a", "b"), ("b", "a", "b")])
async def test_client_that_ends_within_a_rename(
    jetstream: JetStream, monkeypatch: pytest.MonkeyPatch, survivor: str, how: str, path: tuple[str, ...]
) -> None:
    """Both names have the content then. What happens to one of them leaves the other as it is.

    An object may have got the name again for which its chunks were stored.
    """

    async def end(*_: object) -> None:
        raise ZeroDivisionError

    store, data = await jetstream.create_object_store("b"), b"content" * 50_000
    await store.put(path[0], data)
    for name, rename in pairwise(path[:-1]):
        await store.update_meta(name, rename=rename)
    with monkeypatch.context() as patch:
        patch.setattr(stores._RenameStep, "leave", end)
        with pytest.raises(ZeroDivisionError):
            await store.update_meta(path[-2], rename=path[-1])
    other = await jetstream.object_store("b")
    gone = "b" if survivor == "a" else "a"
    await (other.delete(gone) if how == "delete" else other.put(gone, b"new"))
    assert await other.get_bytes(survivor) == data
    await other.update_meta(survivor, description="changed")
    assert await other.get_bytes(survivor) == data
    await other.delete(survivor)
    await other.delete(survivor)  # cleans up again
    left = 0 if how == "delete" else 1
    stream = await jetstream.stream("OBJ_b")
    assert len([subject async for subject, _ in stream.subjects("$O.b.C.>")]) == left


async def test_a_rename_completes_an_earlier_one(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(*_: object) -> None:
        raise ZeroDivisionError

    store = await jetstream.create_object_store("files")
    for made in (store.put("a", b"content"), store.add_link("link", "a"), store.put("other", b"")):
        await made
    for name, rename in (("a", "b"), ("link", "moved")):
        with monkeypatch.context() as patch:
            patch.setattr(stores._RenameStep, "leave", end)
            with pytest.raises(ZeroDivisionError):
                await store.update_meta(name, rename=rename)
        with pytest.raises(ObjectExists):
            await store.update_meta(name, rename="other")
        assert (await store.update_meta(name, rename=rename, description="moved")).name == rename
        with pytest.raises(ObjectNotFound):
            await store.info(name)
        assert (await store.info(rename)).description == "moved"
    assert await store.get_bytes("b") == b"content"


async def test_completing_a_rename_keeps_later_changes(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(*_: object) -> None:
        raise ZeroDivisionError

    store = await jetstream.create_object_store("files")
    await store.put("a", b"content", description="first", metadata={"by": "a"})
    with monkeypatch.context() as patch:
        patch.setattr(stores._RenameStep, "leave", end)
        with pytest.raises(ZeroDivisionError):
            await store.update_meta("a", rename="b")
    await store.update_meta("b", description="later")
    moved = await store.update_meta("a", rename="b", headers={"X": "1"})
    assert (moved.description, moved.metadata) == ("later", {"by": "a"})
    assert moved.headers is not None
    assert (await store.info("b")).description == "later"
    assert [info.name async for info in store.list()] == ["b"]
    assert await store.get_bytes("b") == b"content"


async def test_links_without_an_id_replace_no_other(jetstream: JetStream) -> None:
    """Other clients store links with an empty nuid, which is no sign of one object."""
    store = await jetstream.create_object_store("files")
    for name in ("l1", "l2"):
        info = {"name": name, "bucket": "files", "nuid": "", "options": {"link": {"bucket": "files", "name": name * 2}}}
        subject = f"$O.files.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
        await jetstream.publish(subject, json.dumps(info).encode(), rollup="sub")
    with pytest.raises(ObjectExists):
        await store.update_meta("l1", rename="l2")
    links = {info.name: info.link.name async for info in store.list() if info.link is not None}
    assert links == {"l1": "l1l1", "l2": "l2l2"}
    await store.update_meta("l1", rename="l3")
    assert [info.name async for info in store.list()] == ["l2", "l3"]


async def test_an_undone_rename_leaves_no_chunks(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old name gets another content when the new name is stored: its client keeps the chunks, which both have."""
    store = await jetstream.create_object_store("files")
    await store.put("a", b"old")
    leave = stores._RenameStep.leave

    async def replaced(step: Any, now: Any) -> None:
        await store.put("a", b"new")
        await leave(step, now)

    monkeypatch.setattr(stores._RenameStep, "leave", replaced)
    with pytest.raises(ObjectChanged):
        await store.update_meta("a", rename="b")
    assert await store.get_bytes("a") == b"new"
    assert list((await chunks(store)).values()) == [1]


async def test_uncertain_put_spares_a_renamed_object(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object of that name got another one during the put, whose outcome is not known at first."""
    store = await jetstream.create_object_store("files")
    await store.put("a", b"old")
    replace = ObjectIndex._replace
    settled: list[Callable[[], Awaitable[object]]] = []
    monkeypatch.setattr(store._index, "complete_later", settled.append)

    async def uncertain(index: ObjectIndex, name: str, _: object, *args: Any) -> Any:
        monkeypatch.setattr(ObjectIndex, "_replace", replace)
        await store.update_meta("a", rename="b")
        await replace(index, name, await index.find(name, timeout=5.0), *args)
        raise PublishUncertain("a", "nobody answers")

    monkeypatch.setattr(ObjectIndex, "_replace", uncertain)
    with pytest.raises(PublishUncertain):
        await store.put("a", b"new")
    for settle in settled:
        await settle()
    assert [await store.get_bytes(name) for name in ("a", "b")] == [b"new", b"old"]


async def test_uncertain_put_that_was_replaced_is_over(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other client has purged the chunks, to which a second info of the put would lead."""
    store, other = await jetstream.create_object_store("files"), await jetstream.object_store("files")
    send = ObjectIndex._publish

    async def unanswered(index: ObjectIndex, *args: Any) -> Any:
        await send(index, *args)
        monkeypatch.undo()
        await other.put("a", b"theirs")
        raise PublishUncertain("a", "nobody answers")

    monkeypatch.setattr(ObjectIndex, "_publish", unanswered)
    with pytest.raises(PublishUncertain):
        await store.put("a", b"mine")
    assert await store.get_bytes("a") == b"theirs"


async def _end_of_program(nc: Client, store: ObjectStore) -> None:
    """The server has handled all that a killed program had sent: its connection has ended, and a later message is
    stored.
    """
    while True:
        try:
            await nc.request("renaming", timeout=0.05)
        except NoResponders:
            break
        except RequestTimeout:
            pass
    await store.put("last", b"")
    await store.delete("last")


async def test_programs_that_are_killed_in_a_rename(
    nats_server: Server, nats_client: Client, jetstream: JetStream
) -> None:
    """What a killed program has left: one or two names with the whole content, which no further call takes from the
    other one.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, store, data = random.Random(seed), await jetstream.create_object_store("files"), b"content" * 50_000
    await store.put("a", data)
    cut = 0
    for _ in range(8):
        name = chance.choice(await listed_names(store))
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RENAME, nats_server.url, str(chance.random()), name), stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        assert await asyncio.wait_for(program.stdout.readline(), 60) == b"begins\n"
        await asyncio.sleep(0.05 * chance.random())
        program.kill()
        await program.wait()
        await _end_of_program(nats_client, store)
        left = await listed_names(store)
        for name in left:
            assert await store.get_bytes(name) == data, (seed, name, left)
        chance.shuffle(left)
        if len(left) == 2:
            cut += 1
            await _call_again(store, chance, left)
        assert await store.get_bytes((await listed_names(store))[0]) == data, (seed, left)
    print(f"{cut} renames were cut")
    await store.delete((await listed_names(store))[0])
    assert await chunks(store) == {}


async def _call_again(store: ObjectStore, chance: random.Random, left: list[str]) -> None:
    """Rename one of two names with one content to the other one, delete one of them twice, or replace and delete it."""
    name, other = left
    how = chance.choice(["rename", "delete", "put"])
    if how == "rename":
        await store.update_meta(name, rename=other)
        return
    if how == "put":
        await store.put(name, b"new")
    await store.delete(name)
    await store.delete(name)
