"""The order of a key after failures: what follows waits for the failed message, and other keys go on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.jetstream import groups
from tests.jetstream.reading import make
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._consumer.message import JsMessage
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0


class Desk:
    """Handles numbered messages of keys, some of which fail a few times at first."""

    def __init__(self, rng: random.Random, keys: int, each: int) -> None:
        self.messages = [(f"s.{key}", number) for number in range(each) for key in range(keys)]
        self.failures = Counter({rng.choice(self.messages): rng.randint(1, 3) for _ in range(rng.randint(1, 5))})
        self.handle_s = rng.choice([0, 0.002, 0.03])
        self.done: dict[str, list[int]] = {}
        self.busy = Counter[str]()

    async def handle(self, message: JsMessage) -> None:
        key, number = message.subject, int(message.data)
        self.busy[key] += 1
        assert self.busy[key] == 1
        try:
            await asyncio.sleep(self.handle_s)
            if self.failures[key, number] > 0:
                self.failures[key, number] -= 1
                raise ValueError("not yet")
            self.done.setdefault(key, []).append(number)
        finally:
            self.busy[key] -= 1

    async def serve(self, js: JetStream) -> None:
        """Store the messages, and wait until they are handled."""
        for subject, number in self.messages:
            await js.publish(subject, b"%d" % number)
        await eventually(lambda: sum(map(len, self.done.values())) >= len(self.messages), LONG)
        for key, numbers in self.done.items():
            assert numbers == sorted(set(numbers)), key


async def test_failed_messages_keep_the_order_of_their_key(jetstream: JetStream, seed: int) -> None:
    rng = random.Random(seed)
    desk, concurrency = Desk(rng, keys=6, each=10), rng.choice([1, 2, 4, 16])
    consumer = await (await make(jetstream)).create_consumer("c")
    async with consumer.consume(
        desk.handle, key=lambda message: message.subject, concurrency=concurrency, nak_delay=rng.choice([0, 0.05])
    ):
        await desk.serve(jetstream)


@pytest.mark.slow
async def test_failed_messages_keep_the_order_in_a_group(jetstream: JetStream, nats_server: Server, seed: int) -> None:
    rng = random.Random(seed)
    desk, concurrency = Desk(rng, keys=6, each=10), rng.choice([1, 2, 4])
    await make(jetstream)
    async with natsproto.connect(nats_server.url) as one, natsproto.connect(nats_server.url) as two:
        members = [
            groups.join(
                await nc.jetstream().stream("S"),
                "g",
                desk.handle,
                partitions=4,
                filters={"s.*": [1]},
                concurrency=concurrency,
                nak_delay=0,
            )
            for nc in (jetstream.connection, one, two)[: rng.randint(1, 3)]
            if isinstance(nc, natsproto.Client)
        ]
        async with asyncio.timeout(LONG):
            for member in members:
                await member.__aenter__()
            await eventually(lambda: sum(len(member.partitions) for member in members) == 4, LONG)
        try:
            await desk.serve(jetstream)
        finally:
            for member in members:
                await member.stop()


async def test_other_keys_go_on_beside_a_failed_one(jetstream: JetStream) -> None:
    """Also with more messages of the failed key than workers behind the failed one."""
    consumer = await (await make(jetstream)).create_consumer("c")
    order: list[tuple[str, int]] = []

    async def handle(message: JsMessage) -> None:
        if message.data == b"0" and message.subject == "s.a" and message.metadata.num_delivered == 1:
            raise ValueError("not yet")
        order.append((message.subject, int(message.data)))

    for number in range(40):
        await jetstream.publish("s.a", b"%d" % number)
    for number in range(40):
        await jetstream.publish("s.b", b"%d" % number)
    async with consumer.consume(handle, key=lambda message: message.subject, concurrency=2, nak_delay=1.0):
        await eventually(lambda: len(order) == 80, LONG)
    assert order == [("s.b", number) for number in range(40)] + [("s.a", number) for number in range(40)]
