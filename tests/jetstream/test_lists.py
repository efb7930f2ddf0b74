"""Lists that the server sends in pages: whatever is there all the time is yielded, once."""

import random

import pytest

from natsproto.errors import MessageNotFound, StreamProtected
from natsproto.jetstream import JetStream
from natsproto.jetstream._api.requests import walk_pages


async def test_deletions_between_pages_hide_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        size = rng.randint(1, 6)
        names = sorted({f"{rng.randrange(500):03}" for _ in range(rng.randrange(60))})
        survivors, fetched = set(names), 0

        async def fetch(offset: int, names: list[str] = names, size: int = size) -> tuple[list[str], int]:
            nonlocal survivors, fetched
            fetched += 1
            page = names[offset : offset + size], len(names)
            for _ in range(rng.choice([0, 0, 1, 3, 10])):
                if names:
                    names.remove(rng.choice(names))
            if fetched < 100:
                names.extend(f"{rng.randrange(500):03}x" for _ in range(rng.choice([0, 0, 2])))
            names.sort()
            survivors &= set(names)
            return page

        pages = walk_pages(fetch, lambda page: page[0], lambda page: page[1])
        found = [name async for _, new in pages for name in new]
        assert len(found) == len(set(found))
        assert survivors <= set(found)


async def test_a_list_that_stays_needs_no_more_requests() -> None:
    names = [f"{number:04}" for number in range(1000)]
    offsets: list[int] = []

    async def fetch(offset: int) -> list[str]:
        offsets.append(offset)
        return names[offset : offset + 256]

    assert sum([len(new) async for _, new in walk_pages(fetch, lambda page: page, lambda page: 1000)]) == 1000
    assert offsets == [0, 255, 510, 765]


@pytest.mark.slow
async def test_streams_and_consumers_that_stay_are_listed(jetstream: JetStream) -> None:
    for number in range(300):
        await jetstream.create_stream(f"S{number:03}", subjects=[f"s.{number}"], storage="memory")
    listed = []
    async for info in jetstream.streams():
        listed.append(info.config.name)
        if len(listed) == 200:
            for number in range(40):
                await jetstream.delete_stream(f"S{number:03}")
    assert listed == [f"S{number:03}" for number in range(300)]
    stream = await jetstream.stream("S299")
    for number in range(300):
        await stream.create_consumer(f"c{number:03}", durable_name=f"c{number:03}")
    names = []
    async for consumer in stream.consumers():
        names.append(consumer.name)
        if len(names) == 200:
            for number in range(40):
                await stream.delete_consumer(f"c{number:03}")
    assert names == [f"c{number:03}" for number in range(300)]


async def test_a_message_that_is_gone_is_not_protected(jetstream: JetStream) -> None:
    for storage in ("memory", "file"):
        stream = await jetstream.create_stream(storage, subjects=[storage], storage=storage)
        for _ in range(5):
            await jetstream.publish(storage, b"")
        await stream.delete_message(4)
        await stream.purge(seq=3)
        for seq in (1, 2, 4, 6, 100):
            with pytest.raises(MessageNotFound):
                await stream.delete_message(seq)
        await stream.delete_message(3)
    denied = await jetstream.create_stream("D", subjects=["d"], deny_delete=True)
    with pytest.raises(StreamProtected):
        await denied.delete_message((await jetstream.publish("d", b"")).seq)
