"""A stream, its consumer and two workers, in any order of what is done to them, the server killed in between."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import ConnectionLost, NatsError
from natsproto.jetstream import JetStream, JsMessage, PullConsumer
from natsproto.testing import Server

ACK_WAIT = 10.0
STEPS = 60
LONG = 60.0


class StreamModel:
    """What the stream must hold and which deliveries have a reason."""

    def __init__(
        self, server: Server, clients: list[Client], js: JetStream, workers: list[PullConsumer], seed: int
    ) -> None:
        self.server, self.clients, self.js, self.workers = server, clients, js, workers
        self.chance = random.Random(seed)
        self.held: list[JsMessage] = []
        self.stored: set[int] = set()
        self.removed: set[int] = set()
        self.seen: set[int] = set()
        self.acked: set[int] = set()
        self.given_back: Counter[int] = Counter()
        """Copies that were given back: each brings the message again."""
        self.in_doubt: set[int] = set()
        """Stored before a server was killed, which may have forgotten deliveries and acks, or not confirmed."""
        self.delivered_at: defaultdict[int, float] = defaultdict(float)

    def take(self, messages: list[JsMessage]) -> None:
        """Deliveries, each of which must be the first or have a reason."""
        now = asyncio.get_running_loop().time()
        for message in messages:
            number = message.metadata.stream_seq
            assert number in self.stored, "nobody published it"
            if number in self.seen and number not in self.in_doubt:
                assert number not in self.acked, f"{number} was confirmed and no server was killed since"
                late = now - self.delivered_at[number] >= ACK_WAIT - 1
                assert self.given_back[number] or late, f"{number} came twice for no reason"
                self.given_back[number] -= not late
            self.seen.add(number)
            self.delivered_at[number] = now
            self.held.append(message)

    async def publish(self) -> None:
        for _ in range(self.chance.randint(1, 30)):
            name = f"{self.chance.random()}"
            self.stored.add((await self.js.publish("s.a", name.encode(), msg_id=name, timeout=LONG)).seq)

    async def fetch(self) -> None:
        worker = self.chance.choice(self.workers)
        self.take(await worker.fetch(self.chance.randint(1, 20), no_wait=True, timeout=LONG))

    async def cancelled_fetch(self) -> None:
        """What it had got is the next fetch's of this worker, or the next worker's."""
        fetching = asyncio.ensure_future(self.chance.choice(self.workers).fetch(10, timeout=LONG))
        await asyncio.wait([fetching], timeout=self.chance.random() * 0.01)
        fetching.cancel()
        with suppress(asyncio.CancelledError):
            self.take(await fetching)

    async def ack(self) -> None:
        for message in self._some():
            number = message.metadata.stream_seq
            try:
                await message.ack_sync(timeout=LONG)
                self.acked.add(number)
            except NatsError:
                self.in_doubt.add(number)

    async def give_up(self) -> None:
        """Somebody else must get them."""
        for message in self._some():
            self.given_back[message.metadata.stream_seq] += 1
            await message.nak()

    async def purge(self) -> None:
        if self.stored:
            last = self.chance.choice(sorted(self.stored))
            await (await self.js.stream("S")).purge(seq=last)
            self.removed |= {number for number in self.stored if number < last}

    async def kill(self) -> None:
        """After which a durable consumer may deliver again what it had delivered, confirmed or not."""
        self.server.kill()
        self.in_doubt |= self.stored
        await self.server.restart()
        for client in self.clients:
            with suppress(ConnectionLost):  # where it notices only now
                await client.flush(timeout=LONG)
            await client.flush(timeout=LONG)

    async def finish(self) -> None:
        """The second worker alone gets everything that the first gave up, and nothing is left."""
        self.in_doubt |= {message.metadata.stream_seq for message in self.held}
        for message in self.held:
            await message.nak()
        self.held.clear()
        only = self.workers[1]
        async with asyncio.timeout(2 * LONG):
            while True:
                self.take(await only.fetch(50, timeout=1.0))
                await self.ack_all()
                info = await only.info()
                if info.num_pending == info.num_ack_pending == 0:  # a killed server may have forgotten acks
                    break
        assert self.stored - self.removed <= self.acked

    async def ack_all(self) -> None:
        while self.held:
            await self.ack()

    def _some(self) -> list[JsMessage]:
        self.chance.shuffle(self.held)
        count = self.chance.randint(0, len(self.held))
        some, self.held = self.held[:count], self.held[count:]
        return some


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_model_of_stream_and_consumer(nats_server: Server, seed: int) -> None:
    async with natsproto.connect(nats_server.url) as first, natsproto.connect(nats_server.url) as second:
        js = first.jetstream(timeout=LONG)
        stream = await js.create_stream(name="S", subjects=["s.>"])
        mine = await stream.create_consumer(durable_name="d", ack_wait=ACK_WAIT, max_ack_pending=10_000)
        other = await (await second.jetstream(timeout=LONG).stream("S")).consumer("d")
        model = StreamModel(nats_server, [first, second], js, [mine, other], seed)
        usual = [model.publish, model.fetch, model.fetch, model.cancelled_fetch, model.ack, model.give_up]
        for _ in range(STEPS):
            rare = model.chance.random()
            step = model.kill if rare < 0.02 else model.purge if rare < 0.1 else model.chance.choice(usual)
            await step()
        await model.finish()
