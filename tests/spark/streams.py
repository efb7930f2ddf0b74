"""A stream for one test, and the operations that change it."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Unpack

from natsproto._client import Client
from natsproto.jetstream import JetStream
from natsproto.jetstream._values.arguments import StreamArgs
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.info import StreamInfo
from natsproto.protocol.headers import HeadersLike
from natsproto.spark import SeqRange, SparkNats, read_range
from natsproto.spark._client import run_on_loop
from natsproto.spark._range_reader import Method

METHODS: tuple[Method, ...] = ("consumer", "direct")
_names = (f"R{number}" for number in count())


class StreamFixture:
    """A stream of a test's own, and what is done to it."""

    def __init__(self, nats: SparkNats, **fields: Unpack[StreamArgs]) -> None:
        self.nats = nats
        self.name = next(_names)
        config = StreamConfig(name=self.name, subjects=(f"{self.name}.>",), allow_direct=True)
        self.config = config.replace(**fields)
        self.create()

    def create(self) -> None:
        async def make(client: Client) -> None:
            await client.jetstream().create_stream(self.config)

        run_on_loop(self.nats, make)

    def publish(self, number: int, *subjects: str, data: bytes = b"", headers: HeadersLike | None = None) -> None:
        """So many messages, on these subjects in turn."""
        wheel = [f"{self.name}.{subject}" for subject in subjects or ("a",)]

        async def fill(client: Client) -> None:
            async with client.jetstream().publisher() as publisher:
                for index in range(number):
                    await publisher.publish(wheel[index % len(wheel)], data or b"%d" % index, headers=headers)

        run_on_loop(self.nats, fill)

    def delete(self, *seqs: int) -> None:
        async def drop(client: Client) -> None:
            stream = await client.jetstream().stream(self.name)
            for seq in seqs:
                await stream.delete_message(seq)

        run_on_loop(self.nats, drop)

    def purge(self, before: int) -> None:
        async def drop(client: Client) -> None:
            await (await client.jetstream().stream(self.name)).purge(seq=before)

        run_on_loop(self.nats, drop)

    def recreate(self) -> None:
        async def drop(client: Client) -> None:
            await client.jetstream().delete_stream(self.name)

        run_on_loop(self.nats, drop)
        self.create()

    def info(self) -> StreamInfo:
        async def look(client: Client) -> StreamInfo:
            return await (await client.jetstream().stream(self.name)).info()

        return run_on_loop(self.nats, look)

    def range(self, start: int, end: int) -> SeqRange:
        return SeqRange(stream=self.name, start=start, end=end, created=self.info().created.rfc3339())

    def seqs(self, start: int, end: int, method: Method = "auto", *subjects: str, strict: bool = True) -> list[int]:
        """The sequences that are read."""
        wanted = [f"{self.name}.{subject}" for subject in subjects]
        rows = read_range(
            self.nats, self.range(start, end), subjects=wanted, method=method, batch_rows=7, fail_on_data_loss=strict
        )
        return [row[2] for row in rows]

    def consumers(self) -> int:
        """Once those that are on their way out are gone."""
        deadline = time.monotonic() + 5
        while (number := self.info().state.consumer_count) and time.monotonic() < deadline:
            pass
        return number


async def window_over(js: JetStream, subject: str) -> None:
    """Waits until the server has forgotten every message id that it knows."""
    await js.publish(subject, msg_id="known")
    while (await js.publish(subject, msg_id="known")).duplicate:  # noqa: ASYNC110  # only the server knows
        await asyncio.sleep(0.05)
