"""What streams and buckets hold, and streams that hold numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from natsproto.jetstream import JetStream, PullConsumer, Stream
from natsproto.jetstream._cursor import CURSOR_HEADER
from natsproto.jetstream.kv import KeyValue

__all__ = ["all_keys", "filled_consumer", "numbers_by_subject", "payloads", "publish_numbers", "stored_numbers"]


async def payloads(stream: Stream, subject: str = ">") -> list[bytes]:
    """The payloads of the messages of a stream."""
    return [message.data async for message in stream.get_batch(subject=subject)]


async def stored_numbers(stream: Stream, subject: str = ">") -> list[int]:
    """The numbers that the messages of a stream are."""
    return list(map(int, await payloads(stream, subject)))


async def numbers_by_subject(stream: Stream) -> dict[str, list[int]]:
    """The numbers of each subject, without the messages of cursors."""
    found: dict[str, list[int]] = defaultdict(list)
    async for message in stream.get_batch():
        if CURSOR_HEADER not in message.headers:
            found[message.subject].append(int(message.data))
    return found


async def all_keys(kv: KeyValue, *filters: str) -> list[str]:
    """The keys of a bucket."""
    return [key async for key in kv.keys(*filters)]


async def publish_numbers(js: JetStream, numbers: range, subject: str = "s") -> None:
    """Publish each number; all are stored when this returns."""
    async with js.publisher() as publisher:
        for number in numbers:
            await publisher.publish(subject, b"%d" % number)


async def filled_consumer(js: JetStream, count: int, **fields: Any) -> PullConsumer:
    """A consumer c of a stream S that holds the numbers 0, 1 ... of the subject ``s``."""
    stream = await js.create_stream("S", subjects=["s"])
    await publish_numbers(js, range(count))
    return await stream.create_consumer("c", **fields)
