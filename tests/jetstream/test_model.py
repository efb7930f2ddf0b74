"""A stream, its consumer and two workers, in any order of what is done to them, the server killed in between."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress

import pytest

import natsproto
from natsproto.errors import NatsError
from natsproto.jetstream import JetStream, JsMessage, PullConsumer
from natsproto.testing import Server

ACK_WAIT = 10.0
STEPS = 60
LONG = 60.0


class Model:
    """What the stream must hold and which deliveries have a reason."""

    def __init__(self, server: Server, js: JetStream, workers: list[PullConsumer], seed: int) -> None:
        self.server, self.js, self.workers = server, js, workers
        self.chance = random.Random(seed)
        self.held: list[JsMessage] = []
        self.stored: set[int] = set()
        self.removed: set[int] = set()
        self.seen: set[int] = set()
        self.acked: set[int] = set()
        self.may_return: set[int] = set()
        """Delivered and not confirmed for a reason that brings them back, or brought into doubt by a kill."""
        self.unseen_at_kill: set[int] = set()
        """Perhaps delivered before a server was killed, and not read from the client yet: they may come once more."""
        self.delivered_at: defaultdict[int, float] = defaultdict(float)

    def take(self, messages: list[JsMessage]) -> None:
        """Deliveries, each of which must be the first or have a reason."""
        now = asyncio.get_running_loop().time()
        for message in messages:
            number = message.metadata.stream_seq
            assert number in self.stored, "nobody published it"
            if number in self.seen and number not in self.may_return:
                assert number not in self.acked, f"{number} was confirmed and no server was killed since"
                assert now - self.delivered_at[number] >= ACK_WAIT - 1, f"{number} came twice for no reason"
            self.seen.add(number)
            self.may_return.discard(number)
            if number in self.unseen_at_kill:
                self.unseen_at_kill.discard(number)
                self.may_return.add(number)
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
            self.may_return.add(number)  # until it is confirmed
            with suppress(NatsError):
                await message.ack_sync(timeout=LONG)
                self.acked.add(number)
                self.may_return.discard(number)

    async def give_up(self) -> None:
        """Somebody else must get them."""
        for message in self._some():
            self.may_return.add(message.metadata.stream_seq)
            await message.nak()

    async def purge(self) -> None:
        if self.stored:
            last = self.chance.choice(sorted(self.stored))
            await (await self.js.stream("S")).purge(sequence=last)
            self.removed |= {number for number in self.stored if number < last}

    async def kill(self) -> None:
        """After which a durable consumer may deliver again what it had just been told, confirmed or not."""
        self.server.kill()
        self.may_return |= self.seen
        self.unseen_at_kill |= self.stored - self.seen
        await self.server.restart()

    async def finish(self) -> None:
        """The second worker alone gets everything that the first gave up, and nothing is left."""
        for message in self.held:
            self.may_return.add(message.metadata.stream_seq)
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
        model = Model(nats_server, js, [mine, other], seed)
        usual = [model.publish, model.fetch, model.fetch, model.cancelled_fetch, model.ack, model.give_up]
        for _ in range(STEPS):
            rare = model.chance.random()
            step = model.kill if rare < 0.05 else model.purge if rare < 0.1 else model.chance.choice(usual)
            await step()
        await model.finish()
