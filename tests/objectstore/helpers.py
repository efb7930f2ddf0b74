"""What the tests of object stores have in common: content that nobody can guess, and what a store really holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsproto.jetstream.objectstore import ObjectReader, ObjectStore

CHUNK = 128 * 1024


def content(size: int, seed: int = 1) -> bytes:
    """So many bytes, the same ones every time."""
    return random.Random(seed).randbytes(size)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """An async iterable of these."""
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def listed_names(store: ObjectStore, *, deleted: bool = False) -> list[str]:
    """What is listed."""
    return [info.name async for info in store.list(deleted=deleted)]


async def chunks(store: ObjectStore) -> dict[str, int]:
    """How many chunks the stream holds, by the nuid of their object."""
    return {
        subject.split(".")[3]: count async for subject, count in store._index.stream.subjects(f"$O.{store.bucket}.C.>")
    }


async def cleanups_ended(store: ObjectStore) -> None:
    """Waits until nothing is going on behind what was called."""
    while cleanups := store._api.connection._engine.cleanups.running:
        await asyncio.wait(set(cleanups))


async def holds_only(store: ObjectStore, wanted: Iterable[str]) -> None:
    """Asserts that the store holds exactly the chunks of these objects, none more and none less."""
    infos = [await store.info(name) for name in wanted]
    assert await chunks(store) == {info.nuid: info.chunks for info in infos if info.chunks}


async def read_object(reader: ObjectReader) -> bytes:
    """Everything that it gives."""
    async with reader:
        return b"".join([chunk async for chunk in reader])


async def add_links(store: ObjectStore, count: int) -> None:
    """n0, n1 and so on, a hundred at a time: more would have to wait for longer than a question does."""
    for start in range(0, count, 100):
        await asyncio.gather(*(store.add_bucket_link(f"n{number}", "x") for number in range(start, start + 100)))
