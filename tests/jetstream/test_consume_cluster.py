"""A durable and an ordered reader in a cluster of three whose leaders step down and whose servers are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import errors
from natsproto.testing import run_cluster

if TYPE_CHECKING:
    from natsproto.jetstream.message import JsMessage
    from natsproto.jetstream.ordered import OrderedConsumer
    from natsproto.jetstream.stream import Stream
    from natsproto.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SETTLE = 4.0
"""Seconds without a message after which nothing is thought to be on its way any more."""


class Publisher:
    """Publishes numbers, each until a server has confirmed it, and knows when each of them was."""

    def __init__(self, client: natsproto.Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.confirmed: dict[str, float] = {}
        self._over = False

    async def run(self, lane: int) -> None:
        number = 0
        while not self._over:
            number += 1
            text = f"{lane}-{number}"
            await self._confirm(text)
            self.confirmed[text] = self._loop.time()
            await asyncio.sleep(0.01)

    async def _confirm(self, text: str) -> None:
        reply: dict[str, object] = {"error": "not asked yet"}
        while "error" in reply:
            try:
                message = await self._client.request("s.x", text.encode(), headers={"Nats-Msg-Id": text}, timeout=0.5)
                reply = json.loads(message.data)
            except errors.NatsError:
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._over = True


class Log:
    """What a reader got, and when."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.sequences: list[int] = []
        self.times: list[float] = []

    def note(self, message: JsMessage) -> None:
        self.texts.append(message.data.decode())
        self.sequences.append(message.position[2])
        self.times.append(asyncio.get_running_loop().time())


def longest_gap(times: list[float], begin: float, end: float) -> float:
    """The longest time between two of them, the ends included."""
    inside = [begin, *(time for time in sorted(times) if begin <= time <= end), end]
    return max(after - before for before, after in pairwise(inside))


class Scene:
    """A publisher, a durable and an ordered reader, each on a connection of its own."""

    def __init__(self, cluster: Cluster, stream: Stream, publisher: Publisher) -> None:
        self.cluster, self.stream, self.publisher = cluster, stream, publisher
        self.durable, self.ordered = Log(), Log()
        self.reader: OrderedConsumer | None = None
        self._loop = asyncio.get_running_loop()

    async def read_durable(self, stream: Stream) -> None:
        consumer = await stream.consumer("d", bind=True)
        async with consumer.messages() as messages:
            async for message in messages:
                self.durable.note(message)
                await message.ack()

    async def read_ordered(self, stream: Stream) -> None:
        self.reader = stream.ordered_consumer()
        async with self.reader.messages() as messages:
            async for message in messages:
                self.ordered.note(message)

    async def gaps(self, begin: float, wait: float) -> tuple[float, float, float]:
        """The longest silence of the stream (no publish confirmed), of the durable and of the ordered reader from a
        moment before ``begin`` until ``wait`` seconds after it.
        """
        await asyncio.sleep(begin + wait - self._loop.time())
        span = begin - 0.2, begin + wait
        return (
            longest_gap(list(self.publisher.confirmed.values()), *span),
            longest_gap(self.durable.times, *span),
            longest_gap(self.ordered.times, *span),
        )

    async def settled(self) -> None:
        """Until nothing has come for a while."""
        while (left := max(self.durable.times[-1], self.ordered.times[-1]) + SETTLE - self._loop.time()) > 0:
            await asyncio.sleep(left)

    def check(self) -> None:
        """Nothing is missing, nothing is out of order, next to nothing came twice."""
        wanted = set(self.publisher.confirmed)
        assert wanted - set(self.durable.texts) == set()
        assert wanted - set(self.ordered.texts) == set()
        sequences = self.ordered.sequences
        assert all(before < after for before, after in pairwise(sequences))
        assert len(self.ordered.texts) == len(set(self.ordered.texts))


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with (
        run_cluster(3) as cluster,
        natsproto.connect(cluster.urls, name="publisher") as out,
        natsproto.connect(cluster.urls, name="reader") as nc,
    ):
        stream = await out.jetstream().create_stream(name="S", subjects=["s.>"], num_replicas=3)
        await stream.create_consumer(durable_name="d", ack_wait=60)
        place = Scene(cluster, stream, Publisher(out))
        bound = await nc.jetstream().stream("S", bind=True)
        publishing = [asyncio.ensure_future(place.publisher.run(lane)) for lane in range(2)]
        reading = [
            asyncio.ensure_future(place.read_durable(bound)),
            asyncio.ensure_future(place.read_ordered(bound)),
        ]
        await asyncio.sleep(1.0)
        try:
            yield place
            place.publisher.stop()
            await asyncio.gather(*publishing)
            await place.settled()
        finally:
            for task in (*publishing, *reading):
                task.cancel()
            done = await asyncio.gather(*publishing, *reading, return_exceptions=True)
        failures = [error for error in done if isinstance(error, Exception)]
        assert failures == []
        place.check()


async def tolerant(place: Scene, endpoint: str) -> None:
    """Asks for a change of leader until there is one to be changed."""
    api = place.stream._api
    async with asyncio.timeout(20):
        while True:
            try:
                await api.call(endpoint, asked=endpoint)
            except errors.NatsError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_readers_resume_within_a_second_after_a_step_down() -> None:
    async with scene() as place:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            for endpoint in ("STREAM.LEADER.STEPDOWN.S", "CONSUMER.LEADER.STEPDOWN.S.d"):
                await tolerant(place, endpoint)
                silence, durable, ordered = await place.gaps(loop.time(), 3.0)
                assert durable <= silence + 1.0
                assert ordered <= silence + 1.0
    assert len(place.durable.texts) - len(set(place.durable.texts)) <= 2


async def test_ordered_reader_whose_consumer_is_deleted_resumes_within_a_second() -> None:
    async with scene() as place:
        assert place.reader is not None
        loop = asyncio.get_running_loop()
        for _ in range(3):
            await place.stream.delete_consumer(place.reader.name)
            silence, _, ordered = await place.gaps(loop.time(), 2.0)
            assert ordered <= silence + 1.0


@pytest.mark.parametrize("which", ["reader", "leader"])
async def test_readers_resume_with_the_stream_after_a_kill(which: str) -> None:
    """An ordered consumer that died with its server needs the cluster's metadata leader for the next one, which may
    have died with it as well: then the next election has to be over, which the stream need not wait for.
    """
    async with scene() as place:
        loop = asyncio.get_running_loop()
        info = await place.stream.info()
        assert info.cluster is not None
        assert place.reader is not None
        meta = (await place.cluster.meta_leader()).name
        if which == "leader":
            name = info.cluster.leader
        else:
            name = next(server.name for server in place.cluster.servers if server.name != info.cluster.leader)
        victim = next(server for server in place.cluster.servers if server.name == name)
        began = loop.time()
        victim.kill()
        silence, durable, ordered = await place.gaps(began, 14.0)
        elected = 0.0
        if name == meta:
            await place.cluster.meta_leader()
            elected = 12.0
        assert durable <= silence + 1.5 or (which == "reader" and durable <= 12.0)  # its own leader may have died
        assert ordered <= max(silence, elected) + 2.5
        await victim.restart()
        await place.cluster.ready()
    assert len(place.durable.texts) - len(set(place.durable.texts)) <= 20
